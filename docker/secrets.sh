#!/bin/sh
# Makes what compose.yaml keeps secret, in the folder `secrets` beside this file; keeps what is there.
set -eu
folder=$(dirname "$0")/secrets
# The folder is for its owner only. The files in it can be read by the containers' users, which have
# other numbers than the owner, and into whose containers each file is mounted alone.
umask 077
mkdir -p "$folder"
umask 022
random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
[ -e "$folder/ray_token" ] || random >"$folder/ray_token"
[ -e "$folder/postgres_password" ] || random >"$folder/postgres_password"
# libpq reads it (PGSERVICEFILE), so that the password is in no command line and no variable.
[ -e "$folder/mlflow_database" ] || cat >"$folder/mlflow_database" <<EOF
[mlflow]
host=postgres
port=5432
dbname=mlflow
user=mlflow
password=$(cat "$folder/postgres_password")
EOF
echo "in $folder: ray_token, postgres_password, mlflow_database"
