"""What is found out about photographs before their first study: network, learning rate, target."""
