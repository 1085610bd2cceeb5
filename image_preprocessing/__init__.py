"""From image bytes to what an image encoder takes: decoding, planning and pixels, with numpy and Pillow alone.

A request's image passes through `pipeline.prepare_image`; the settings come from the resolved arguments
(`settings.ImageSettings.from_values`), the limits from `limits.ImageLimits`.
"""
