"""Run the chart in a Kubernetes of one node, replace its pods under load, and judge what is left."""
