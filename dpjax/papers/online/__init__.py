"""Online-to-batch conversion: any online learner, on private estimates of gradients."""
