"""The study of a task's settings: Optuna over the simulator."""
