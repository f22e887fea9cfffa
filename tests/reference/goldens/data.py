"""Goldens of the data: token ids, and pictures as the training script feeds them to the VAE."""
import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import CLIPTokenizer

from . import GoldenFile, write_json

PROMPTS = [
    "a photo of a green star", "a rendering of the cool {}", "{}", "{} {}", "a{}b", "a photo of {}.", "{}, {}!", "",
    "  leading,   inner and trailing   blanks  ", "UPPER Case and MiXeD {} Case", "tabs\tand\nnewlines",
    "don't can't we'll I've she'd they're it's {}'s", "numbers 1234567890 3.14 1,000 v2", "émigré naïve café Ünïcödé ñ",
    "日本語 中文 한국어 العربية русский ελληνικά", "emoji 😀🎉👩‍👩‍👧‍👦 {}", "hyphen-ated_and_under/slashed\\back", "\"quotes\" 'single' `ticks` «guillemets»",
    "!!! ... ??? ;;; :-) !", "!", "a photo!of{}!", "<|startoftext|> inside <|endoftext|> the prompt", "ﬁ ligature ½ ² Å Å",
    "control\u0000\u0007 characters\u200b zero width\ufeff", "#hashtag @user https://example.com/?q=1&r=2", "$100 50% ^~* (a) [b] {c}",
    "word " * 90, "{} " * 90, "supercalifragilisticexpialidocious " * 30, "a" * 400,
]
PLACEHOLDERS = {
    "none": [], "one": ["<dicoo>"], "three": ["<dicoo>", "<dicoo>_1", "<dicoo>_2"], "word": ["sks42"],
    "spaced": ["<green star>"],
}
WORDS = ["star", "toy", "Star", " star", "dog", "green star", "supercalifragilistic", "!", "<dicoo>", "", "日", "ring"]


def make_token_goldens(checkpoints, path):
    """`checkpoints`: the name each is listed under, and its folder."""
    cases = []
    for name, folder in checkpoints.items():
        for placeholders in PLACEHOLDERS.values():
            tokenizer = CLIPTokenizer.from_pretrained(folder, subfolder="tokenizer")
            added = tokenizer.add_tokens(placeholders) if placeholders else 0
            prompts = []
            for template in PROMPTS:
                # The script's own replace: the vectors' tokens, with blanks between them.
                text = template.replace("{}", " ".join(placeholders))
                ids = tokenizer(text, padding="max_length", truncation=True, max_length=77).input_ids
                prompts.append({"text": text, "input_ids": ids})
            cases.append({
                "checkpoint": name, "placeholder_tokens": placeholders, "tokens_added": added, "prompts": prompts,
                "placeholder_ids": tokenizer.convert_tokens_to_ids(placeholders) if placeholders else [],
                "words": [{"word": w, "ids": tokenizer.encode(w, add_special_tokens=False)} for w in WORDS],
            })
    write_json(path, cases)


def draw_pictures():
    """Small pictures by file name, each with something that a resize or a conversion can get wrong."""
    generator = np.random.default_rng(60)

    def noise(*shape):
        return generator.integers(0, 256, shape, dtype=np.uint8)

    ramp = np.linspace(0, 255, 90 * 61 * 3).reshape(90, 61, 3).astype(np.uint8)
    checks = np.kron(np.indices((16, 12)).sum(axis=0) % 2, np.ones((8, 8)))[..., None].repeat(3, axis=2) * 255
    transparent = Image.fromarray(noise(33, 47, 4), "RGBA")
    return {
        "noise-wide.png": Image.fromarray(noise(50, 83, 3)),
        "noise-tall.png": Image.fromarray(noise(97, 31, 3)),
        "noise-large.png": Image.fromarray(noise(301, 200, 3)),
        "tiny.png": Image.fromarray(noise(5, 3, 3)),
        "ramp.png": Image.fromarray(ramp),
        "checks.png": Image.fromarray(checks.astype(np.uint8)),
        "gray.png": Image.fromarray(noise(40, 40)),
        "transparent.png": transparent,
        "gray-transparent.png": Image.fromarray(noise(20, 30, 2), "LA"),
        "palette.png": Image.fromarray(noise(40, 52, 3)).quantize(32),
        "lossless.webp": Image.fromarray(noise(36, 44, 3)),
        "same-size.png": Image.fromarray(noise(64, 64, 3)),
    }


def training_pixels(image, size, center_crop, flip):
    """TextualInversionDataset.__getitem__ of diffusers' textual_inversion.py."""
    if image.mode != "RGB":
        image = image.convert("RGB")
    pixels = np.array(image).astype(np.uint8)
    if center_crop:
        crop = min(pixels.shape[0], pixels.shape[1])
        h, w = pixels.shape[0], pixels.shape[1]
        pixels = pixels[(h - crop) // 2 : (h + crop) // 2, (w - crop) // 2 : (w + crop) // 2]
    image = Image.fromarray(pixels).resize((size, size), resample=Image.Resampling.BICUBIC)
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.array(image).astype(np.uint8)
    return torch.from_numpy((pixels / 127.5 - 1.0).astype(np.float32)).permute(2, 0, 1)


def make_picture_goldens(folder, path):
    golden = GoldenFile()
    folder.mkdir()
    for name, image in draw_pictures().items():
        image.save(folder / name, **({"lossless": True, "exact": True} if name.endswith("webp") else {}))
    # JPEG with an orientation: decoders differ by a few levels, so no noise here.
    smooth = np.zeros((48, 80, 3), np.uint8)
    smooth[:, :40], smooth[:24, 40:] = (200, 60, 40), (40, 90, 210)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(smooth).save(folder / f"exif-{orientation}.jpg", quality=95, subsampling=0, exif=exif)
    for file in sorted(folder.iterdir()):
        image = ImageOps.exif_transpose(Image.open(file))
        golden.put(f"{file.name}/decoded", torch.from_numpy(np.array(image.convert("RGB"))))
        for size in (64, 48):
            for center_crop in (False, True):
                for flip in (False, True):
                    case = f"{file.name}/size-{size}-crop-{int(center_crop)}-flip-{int(flip)}"
                    golden.put(case, training_pixels(image, size, center_crop, flip))
    golden.save(path)
