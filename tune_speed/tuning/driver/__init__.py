"""Between policy and trials: controller, ledger, cost model, retries."""
