//! LoRA files in the tools that people use them with, and the commands that make them.

use std::{fs, os::unix::fs::MetadataExt as _};

use anyhow::{Result, ensure};
use ringtune_tests::{Sandbox, job::text, places, reference};

const FORMATS: [&str; 4] = ["diffusers", "peft", "kohya", "attention_processors"];

#[tokio::test]
async fn diffusers_reads_every_format_as_the_same_factors() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let folder = text(sandbox.folder());
    reference::run_script("check_loras.py", &["make", &folder]).await?.expect_code(0)?;
    // Through each of them into each: what one loses, all behind it miss.
    for (stem, formats) in [("all", &FORMATS[..3]), ("attention", &FORMATS[..])] {
        let mut from = format!("{stem}.safetensors");
        for format in formats.iter().chain(formats) {
            let to = format!("{stem}-{format}.safetensors");
            sandbox.finish(&["lora", "convert", &from, "--to", format, "-o", &to]).await?.expect_code(0)?;
            from = to;
        }
    }
    let checked = reference::run_script("check_loras.py", &["check", &folder]).await?.expect_code(0)?;
    ensure!(checked.stdout.contains("\"ok\": true"), "{}", checked.stdout);

    // What is said of one, a lower rank, and what is refused.
    let told = async |file: &str| {
        let line = ["lora", "info", file, "--output", "json"];
        Ok::<_, anyhow::Error>(sandbox.finish(&line).await?.expect_code(0)?.json_lines()?.swap_remove(0))
    };
    let all = told("all-diffusers.safetensors").await?;
    ensure!(all["format"] == "diffusers" && all["base"] == "Stable Diffusion 1", "{all}");
    ensure!(all["metadata"]["ss_output_name"] == "all" && all["ranks"]["3"].is_u64(), "{all}");
    let line = ["lora", "resize", "all.safetensors", "--rank", "1", "-o", "low.safetensors"];
    sandbox.finish(&line).await?.expect_code(0)?.expect_said(&["lowered", "keeps at least"])?;
    let low = told("low.safetensors").await?;
    ensure!(
        low["ranks"].as_object().is_some_and(|ranks| ranks.len() == 1) && low["format"] == "kohya",
        "{low}"
    );
    let before = fs::read(sandbox.path("all.safetensors"))?;
    for (line, part) in [
        (["all.safetensors", "--to", "peft", "-o", "./all.safetensors"], "-o is the file that is read"),
        (["all.safetensors", "--to", "attention_processors", "-o", "new"], "have no place"),
        (["missing", "--to", "peft", "-o", "new"], "No such file"),
    ] {
        let line = [&["lora", "convert"][..], &line].concat();
        sandbox.finish(&line).await?.expect_code(2)?.expect_said(&[part])?;
    }
    ensure!(fs::read(sandbox.path("all.safetensors"))? == before && !sandbox.path("new").exists());
    Ok(())
}

#[tokio::test]
async fn a_merged_model_is_what_diffusers_fuses() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let (folder, toy) = (text(sandbox.folder()), text(&places::repository().join("tests/fixtures/toy-sd")));
    reference::run_script("merge_loras.py", &["make", &toy, &folder]).await?.expect_code(0)?;
    let fp32 = text(&sandbox.path("fp32"));
    // fp16, and fp32 as the installed libraries write it; one of each form, and both with other weights.
    for (name, model, loras) in [
        ("kohya", &toy, &["kohya.safetensors"][..]),
        ("dora", &fp32, &["dora.safetensors:0.5"]),
        ("both", &fp32, &["kohya.safetensors:0.8", "dora.safetensors:-0.5"]),
    ] {
        let line = [&["lora", "merge"][..], loras, &["--model", model, "-o", name]].concat();
        sandbox.finish(&line).await?.expect_code(0)?.expect_said(&["layers of the UNet"])?;
        let merged = text(&sandbox.path(name));
        let weighted: Vec<String> = loras
            .iter()
            .map(|lora| if lora.contains(':') { (*lora).to_owned() } else { format!("{lora}:1") })
            .collect();
        let mut arguments = vec!["check", model, &folder, &merged];
        arguments.extend(weighted.iter().map(String::as_str));
        let checked = reference::run_script("merge_loras.py", &arguments).await?;
        ensure!(checked.stdout.contains("\"ok\": true"), "{name}: {} {}", checked.stdout, checked.stderr);
    }
    // What no LoRA changes takes no room.
    let inode = |path: &str| fs::metadata(path).map(|about| about.ino());
    let vae = "vae/diffusion_pytorch_model.safetensors";
    ensure!(inode(&format!("{fp32}/{vae}"))? == inode(&text(&sandbox.path(&format!("both/{vae}"))))?);

    // A model in one file becomes what its folder becomes, in that layout.
    let one = sandbox.path("one");
    let layout =
        async |line: &[&str]| reference::run_script("original_layout.py", line).await?.expect_code(0);
    layout(&["tiny", &text(&one)]).await?;
    let file = |name: &str| text(&one.join(name));
    for (name, kind) in [("half-one", "fp16"), ("two", "fp32")] {
        let loras = sandbox.path(&format!("loras-{name}"));
        fs::create_dir(&loras)?;
        reference::run_script("merge_loras.py", &["make", &file(name), &text(&loras)])
            .await?
            .expect_code(0)?;
        let (kohya, dora) = (text(&loras.join("kohya.safetensors")), text(&loras.join("dora.safetensors")));
        let (of_folder, of_file) =
            (file(&format!("{name}-merged")), file(&format!("{name}-merged.safetensors")));
        let single = file(&format!("{name}.safetensors"));
        for (model, out) in [(&file(name), &of_folder), (&single, &of_file)] {
            let line = ["lora", "merge", &kohya, &format!("{dora}:0.5"), "--model", model, "-o", out];
            sandbox.finish(&line).await?.expect_code(0)?.expect_said(&["layers of the UNet"])?;
        }
        let expected = file("expected.safetensors");
        layout(&["write", &of_folder, &expected, "--dtype", kind]).await?;
        layout(&["same", &expected, &of_file]).await?;
        ensure!(fs::read(&of_file)? != fs::read(&single)?, "nothing was merged");
    }
    let single = file("two.safetensors");

    // What is refused leaves nothing.
    reference::run_script("check_loras.py", &["make", &folder]).await?.expect_code(0)?;
    let without = sandbox.path("without");
    fs::create_dir_all(without.join("unet"))?;
    fs::write(without.join("unet/diffusion_pytorch_model.fp16.safetensors"), b"")?;
    let without = text(&without);
    let inside = format!("{fp32}/merged");
    for (lora, model, out, part) in [
        ("all.safetensors", &fp32, "new", "it is a LoRA for Stable Diffusion 1, and "),
        ("kohya.safetensors:strong", &fp32, "new", "\"strong\" is no weight"),
        ("missing.safetensors", &fp32, "new", "missing.safetensors: No such file"),
        ("kohya.safetensors", &fp32, "both", "both: it is there already"),
        ("kohya.safetensors", &fp32, &inside, "within the model's folder"),
        ("kohya.safetensors", &without, "new", "there are diffusion_pytorch_model.fp16.safetensors"),
        ("kohya.safetensors:1e30", &toy, "new", "which F16 has no place for"),
        ("kohya.safetensors", &single, "new", "give an -o that ends in .safetensors"),
        (
            "kohya.safetensors",
            &text(&sandbox.path("kohya.safetensors")),
            "new.safetensors",
            "has no tensor 'model.diffusion_model.",
        ),
    ] {
        let line = ["lora", "merge", lora, "--model", model, "-o", out];
        sandbox.finish(&line).await?.expect_code(2)?.expect_said(&[part])?;
    }
    let left =
        fs::read_dir(sandbox.folder())?.map(|entry| Ok(text(&entry?.path()))).collect::<Result<Vec<_>>>()?;
    ensure!(!left.iter().any(|path| path.contains(".merge-") || path.contains("/new")), "{left:?}");
    ensure!(!sandbox.path("fp32/merged").exists());
    Ok(())
}
