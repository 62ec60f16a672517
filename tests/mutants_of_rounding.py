"""Deliberate breaks of files in 8 bits; see `mutants.py`."""

# By file and tests: what each break does, the text before and after it.
OF_ROUNDING = {
    ("vitcli/weights/production/int8.py", "tests/weights/production/test_int8.py"): {
        "products of 8 bits overflow without VNNI": (
            "MOST_OF_PRODUCTS, MOST_STORED = 63, 127",
            "MOST_OF_PRODUCTS, MOST_STORED = 127, 127",
        ),
        "weights are smoothed the wrong way": (
            "_array(constants[name], path) * rounding.smoothing_K[:, None]",
            "_array(constants[name], path) / rounding.smoothing_K[:, None]",
        ),
        "a layer norm is not smoothed": (
            "(_array(constant, path) / s_K).astype(np.float32)",
            "(_array(constant, path) / 1).astype(np.float32)",
        ),
        "smoothing is never worth its product": ("WORTH_A_PRODUCT = 0.5", "WORTH_A_PRODUCT = 0.0"),
        "no layer falls back": ("    if roundings and now > MOST_LOSS:\n", "    if False:\n"),
        "layers fall back that lose little": ("if now <= MOST_LOSS or gains[name] < least:", "if False:"),
        "the largest layers fall back first": (
            "(now - loss_without({name})) / num_products[name] for name",
            "(now - loss_without({name})) * num_products[name] for name",
        ),
        "the quietest layers are tried": (
            "sorted(roundings, key=lambda name: -roundings[name].noise)",
            "sorted(roundings, key=lambda name: roundings[name].noise)",
        ),
        "an error is a fraction of the outputs, not of their variance": (
            "exact_IN - (exact_IN.mean(axis=0) if len(exact_IN) > 1 else 0)",
            "exact_IN - 0",
        ),
        "the noise of weights is left out": (
            "        noise += ((high - low) / 255) ** 2 / 12 * (smoothed_KN**2).sum()\n",
            "        noise = ((high - low) / 255) ** 2 / 12 * (smoothed_KN**2).sum()\n",
        ),
        "a layer that falls back is rounded all the same": (
            "            axis = axes.pop(name)\n",
            "            axis = axes[name]\n",
        ),
        "stored weights are rounded at each run": (
            "    if is_multiplied:\n",
            "    if True:\n",
        ),
    },
}
