//! Pictures of `ringtune generate`, drawn again in diffusers from what they say about themselves.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use ringtune_proto::v1::JobState;
use ringtune_tests::{Cluster, Job, Sandbox, files::names_in, job::text, places, reference};

/// A short job whose concept has two vectors; returns the folder with its artifacts.
async fn learn(sandbox: &Sandbox, job: Job) -> Result<String> {
    let job =
        job.set("train.num_vectors", 2).set("train.max_train_steps", 30).set("train.learning_rate", 0.05);
    sandbox.write_job("job.toml", &job)?;
    sandbox.finish(&["run", "job.toml", "-o", "out"]).await?.expect_code(0)?;
    Ok(text(&sandbox.path("out")))
}

/// Draws in fp32 with one thread.
async fn draw(sandbox: &Sandbox, model: &str, prompt: &str, more: &[&str]) -> Result<()> {
    let fixed =
        ["generate", "--model", model, "--prompt", prompt, "--mixed-precision", "no", "--threads", "1"];
    let arguments: Vec<&str> = fixed.into_iter().chain(more.iter().copied()).collect();
    sandbox.finish(&arguments).await?.expect_code(0)?;
    Ok(())
}

#[tokio::test]
async fn diffusers_draws_the_same_pictures_from_their_own_parameters() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let out = learn(&sandbox, Job::toy()?).await?;
    let (model, embeds) = (text(&places::toy_checkpoint()), format!("{out}/learned_embeds.safetensors"));
    // 1. Several pictures at once; texts that Latin-1 has, and that it has not.
    let (batch, seed) = (["--count", "2", "--batch", "2"], ["--seed", "12345678901"]);
    let common = ["--embeds", &embeds, "--steps", "8", "--guidance", "4"];
    let more = [&common[..], &batch, &seed, &["--scheduler", "ddim", "-o", "several"]].concat();
    draw(&sandbox, &model, "a photo of a <green-star>, \"café\": big", &more).await?;
    let more = [&common[..], &["--negative-prompt", "mud: 猫", "--width", "96", "-o", "wide.png"]].concat();
    draw(&sandbox, &model, "a <green-star> on navy", &more).await?;
    // 2. The token's second vector would be the 76th token: both begin the second chunk. The negative prompt has three.
    let (long, longer) = (format!("{}<green-star> on navy", "star ".repeat(74)), "ring ".repeat(151));
    let more =
        [&common[..], &["--negative-prompt", &longer, "--scheduler", "dpm++_2m_karras", "-o", "long.png"]];
    draw(&sandbox, &model, &long, &more.concat()).await?;
    // 3. What they say is enough to draw them again.
    let pictures = ["several/prompt-00-000.png", "several/prompt-00-001.png", "wide.png", "long.png"];
    let paths = pictures.map(|name| text(&sandbox.path(name)));
    let [a, b, c, d] = &paths;
    let checked =
        reference::run_script("check_pictures.py", &[&model, a, b, c, d, "--embeds", &embeds]).await?;
    let lines = checked.expect_code(0)?.json_lines()?;
    let said = |line: usize, key: &str| lines.get(line).map(|line| line[key].clone()).context("a line");
    ensure!(said(1, "prompt")? == "a photo of a <green-star>, \"café\": big" && said(1, "chunk")? == "str");
    ensure!(said(1, "settings")?["Seed"] == "12345678901" && said(1, "settings")?["Picture"] == "1");
    let settings = said(2, "settings")?;
    ensure!(said(2, "negative")? == "mud: 猫" && said(2, "chunk")? == "iTXt", "{lines:?}");
    ensure!(settings["Size"] == "96x64" && settings["CFG scale"] == "4" && settings["Sampler"] == "PLMS");
    let hashes = settings["TI hashes"].as_str().context("hashes")?;
    ensure!(hashes.starts_with("<green-star>: ") && hashes.len() == "<green-star>: ".len() + 12, "{hashes}");
    ensure!(
        settings["Model"] == "toy-sd"
            && settings["Version"].as_str().is_some_and(|v| v.starts_with("ringtune"))
    );
    ensure!(said(3, "chunks")? == 3, "{lines:?}");
    Ok(())
}

#[tokio::test]
async fn diffusers_loads_the_full_pipeline_and_draws_the_same_pictures() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let out = learn(&sandbox, Job::toy()?.set("train.save_as_full_pipeline", true)).await?;
    let (pipeline, model) = (format!("{out}/pipeline"), text(&places::toy_checkpoint()));
    let embeds = format!("{out}/learned_embeds.safetensors");
    ensure!(sandbox.path("out/learned_embeds.safetensors").is_file(), "the embedding is there too");
    // 1. The same pictures from the pipeline alone as from the checkpoint with the embedding, to the bit.
    let prompt = "a photo of a <green-star>";
    for (scheduler, name) in [(&[][..], "own"), (&["--scheduler", "ddim"][..], "ddim")] {
        let common = [&["--steps", "10", "--guidance", "4", "--seed", "3"], scheduler].concat();
        let (from_pipeline, from_both) = (format!("{name}.png"), format!("{name}-both.png"));
        draw(&sandbox, &pipeline, prompt, &[&common[..], &["-o", &from_pipeline]].concat()).await?;
        draw(&sandbox, &model, prompt, &[&common[..], &["--embeds", &embeds, "-o", &from_both]].concat())
            .await?;
        let pixels = |name: &str| Ok::<_, anyhow::Error>(image::open(sandbox.path(name))?.to_rgb8());
        ensure!(pixels(&from_pipeline)? == pixels(&from_both)?, "{name}: other pixels");
    }
    // 2. diffusers draws them too, given the text of the prompt and nothing else.
    let (own, ddim) = (text(&sandbox.path("own.png")), text(&sandbox.path("ddim.png")));
    let checked = reference::run_script("check_pictures.py", &[&pipeline, &own, &ddim, "--plain"]).await?;
    let lines = checked.expect_code(0)?.json_lines()?;
    ensure!(lines.len() == 2 && lines.iter().all(|line| line["prompt"] == prompt), "{lines:?}");
    // 3. Without the word's rows it is another picture: the comparison can fail.
    draw(
        &sandbox,
        &model,
        "a photo of a green star",
        &["--steps", "10", "--guidance", "4", "--seed", "3", "-o", "word.png"],
    )
    .await?;
    let (word, own) = (image::open(sandbox.path("word.png"))?, image::open(sandbox.path("own.png"))?);
    ensure!(word.to_rgb8() != own.to_rgb8());
    Ok(())
}

#[tokio::test]
async fn a_pipeline_that_cannot_be_made_is_refused_before_training() -> Result<()> {
    let sandbox = Sandbox::new()?;
    std::fs::create_dir_all(sandbox.path("out/pipeline"))?;
    std::fs::write(sandbox.path("out/pipeline/notes.txt"), "mine")?;
    sandbox.write_job("job.toml", &Job::toy()?.set("train.save_as_full_pipeline", true))?;
    let said = ["train.save_as_full_pipeline", "is not a pipeline"];
    sandbox.finish(&["run", "job.toml", "-o", "out"]).await?.expect_code(2)?.expect_said(&said)?;
    ensure!(
        !sandbox.path("out/learned_embeds.safetensors").exists()
            && sandbox.path("out/pipeline/notes.txt").exists()
    );
    Ok(())
}

#[tokio::test]
async fn prompts_and_sizes_that_cannot_be_drawn_are_refused() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let model = text(&places::toy_checkpoint());
    let long = "star ".repeat(601);
    let cases: [(&[&str], i32, &[&str]); 4] = [
        (&["--prompt", &long], 1, &["601 tokens", "at most 8"]),
        (&["--prompt", "a star", "--width", "62"], 2, &["--width", "62", "multiples"]),
        (&["--prompt", "a star", "--batch", "65"], 2, &["--batch", "65"]),
        (&["--prompt", "a star", "--size", "64", "--width", "64"], 2, &["--size", "--width"]),
    ];
    for (arguments, code, said) in cases {
        let all = [&["generate", "--model", &model, "-o", "none.png"], arguments].concat();
        sandbox.finish(&all).await?.expect_code(code)?.expect_said(said)?;
        ensure!(!sandbox.path("none.png").exists(), "nothing is drawn");
    }
    Ok(())
}

/// A job that draws with the embedding in `out`: two prompts, three pictures each, in batches of two.
fn drawing_job(ranks: i64) -> Result<String> {
    let model = text(&places::toy_checkpoint());
    Ok(format!(
        "kind = \"generate\"\nname = \"pictures\"\n[model]\nbase = {model:?}\n[generate]\n\
         prompts = [\"a photo of a <green-star>\", \"a heart on navy\"]\nnegative_prompt = \"mud\"\n\
         embeddings = [\"out/learned_embeds.safetensors\"]\ncount = 3\nsteps = 6\nguidance_scale = 4.0\nwidth = 48\n\
         height = 64\nseed = 5\nscheduler = \"euler_a\"\nbatch = 2\nsheet = true\n\
         [cluster]\nworld_size = {ranks}\nthreads_per_rank = 1\n"
    ))
}

#[tokio::test]
async fn a_job_draws_the_same_bytes_on_any_number_of_workers_as_the_command() -> Result<()> {
    let sandbox = Sandbox::new()?;
    learn(&sandbox, Job::toy()?).await?;
    // 1. One worker, and then two with what that run left: its job.toml is the job, and the embedding is where it was.
    std::fs::write(sandbox.path("draw-1.toml"), drawing_job(1)?)?;
    let two = ["--set", "cluster.world_size=2", "--set", "cluster.min_world_size=2"];
    for line in [
        &["run", "draw-1.toml", "-o", "drawn-1"][..],
        &[&["run", "drawn-1/job.toml", "-o", "drawn-2"], &two[..]].concat(),
    ] {
        sandbox.finish(line).await?.expect_code(0)?.expect_said(&["all pictures are drawn"])?;
    }
    sandbox.expect_no_process().await?;
    let names = |folder: &str| names_in(&sandbox.path(folder));
    let pictures = (1..=6).map(|number| format!("image-{number:04}.png"));
    let expected: Vec<String> = pictures
        .clone()
        .chain(["job-sources.json", "job.log", "job.toml", "sheet.png"].map(str::to_owned))
        .collect();
    ensure!(names("drawn-1")? == expected && names("drawn-2")? == expected, "{:?}", names("drawn-2")?);
    let bytes = |name: &str| std::fs::read(sandbox.path(name)).with_context(|| name.to_owned());
    for name in pictures.clone().chain(["sheet.png".to_owned()]) {
        ensure!(bytes(&format!("drawn-1/{name}"))? == bytes(&format!("drawn-2/{name}"))?, "{name} differs");
    }
    // 2. The command with the same parameters.
    let embeds = text(&sandbox.path("out/learned_embeds.safetensors"));
    let more =
        ["--prompt", "a heart on navy", "--negative-prompt", "mud", "--embeds", &embeds, "--count", "3"];
    let more =
        [&more[..], &["--steps", "6", "--guidance", "4", "--width", "48", "--height", "64", "--seed", "5"]]
            .concat();
    let more = [&more[..], &["--scheduler", "euler_a", "--batch", "2", "-o", "command"]].concat();
    draw(&sandbox, &text(&places::toy_checkpoint()), "a photo of a <green-star>", &more).await?;
    for (number, name) in pictures.enumerate() {
        let by_command = bytes(&format!("command/prompt-{:02}-{:03}.png", number / 3, number % 3))?;
        ensure!(by_command == bytes(&format!("drawn-1/{name}"))?, "{name} differs from the command's");
    }
    // 3. The job file among the artifacts is the job.
    let again = sandbox.finish(&["run", "--print-job", "drawn-1/job.toml"]).await?.expect_code(0)?;
    ensure!(
        again.stdout.contains("kind = \"generate\"") && !again.stdout.contains("[train]"),
        "{}",
        again.stdout
    );
    Ok(())
}

#[tokio::test]
async fn a_job_that_cannot_be_drawn_fails_with_its_field() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let job = drawing_job(1)?;
    let cases = [
        (job.clone(), 2, "generate.embeddings"),
        (job.replace("width = 48", "width = 46").replace("embeddings", "#"), 1, "generate.width: is 46"),
        (job.replace("a heart on navy", &"star ".repeat(601)).replace("embeddings", "#"), 1, "601 tokens"),
        (format!("{job}[train]\nlearning_rate = 0.1\n"), 2, "has no [train]"),
    ];
    for (job, code, said) in cases {
        std::fs::write(sandbox.path("job.toml"), job)?;
        sandbox.finish(&["run", "job.toml", "-o", "out"]).await?.expect_code(code)?.expect_said(&[said])?;
    }
    sandbox.expect_no_process().await
}

/// A picture that takes minutes does not keep its worker from the next job, once nobody wants it.
#[tokio::test]
async fn a_job_is_cancelled_while_a_picture_is_drawn() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let cluster = Cluster::start(&sandbox, 1).await?;
    let drawing = |name: &str, options: &str| -> Result<PathBuf> {
        let model = text(&places::toy_checkpoint());
        let job =
            format!("kind = \"generate\"\n[model]\nbase = \"{model}\"\n[generate]\nprompts = [\"a star\"]\n");
        std::fs::write(sandbox.path(name), format!("{job}{options}\n"))?;
        Ok(sandbox.path(name))
    };
    let slow = drawing("slow.toml", "steps = 1000\nwidth = 512\nheight = 512\ncount = 2")?;
    let slow = cluster.submit(&slow).await?;
    cluster.wait_for_state(&slow, JobState::Running).await?;
    cluster.finish(&["cancel", &slow]).await?.expect_code(0)?;
    ensure!(cluster.wait_for_end(&slow).await?.state() == JobState::Cancelled);
    let log = std::fs::read_to_string(cluster.fetch(&slow, "slow").await?.join("job.log"))?;
    ensure!(log.contains("stopped on request"), "{log}");
    // The next one is drawn long before that picture would have been.
    let quick = cluster.submit(&drawing("quick.toml", "steps = 2")?).await?;
    cluster.wait_for_success(&quick).await.map(drop)
}
