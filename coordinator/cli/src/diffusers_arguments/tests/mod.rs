//! What becomes of command lines.

mod lora;
mod network;
mod option_lists;
mod unet;

use std::collections::{BTreeMap, BTreeSet};

use ringtune_shared::job::{
    LrScheduler, MixedPrecision, kinds::textual_inversion::TextualInversionSpec, parse_job_toml,
};

use super::{
    options::{Becomes, Row, each},
    *,
};

fn nowhere(_: &str) -> Option<Vec<String>> {
    None
}

/// Two numbered folders of pictures with captions, one without, and a file.
fn folders(path: &str) -> Option<Vec<String>> {
    let names: &[&str] = match path.trim_end_matches('/') {
        "train" => &["10_dog", "2_old dog", "notes", "log.txt"],
        "train/10_dog" | "train/2_old dog" => &["a.png", "a.txt", "b.JPG", "b.caption"],
        "plain" => &["10_sks dog", "0_cat"],
        "plain/10_sks dog" | "mixed/1_cat" | "plain/0_cat" => &["a.png", "b.txt"],
        "mixed" => &["1_cat", "3_dog"],
        "mixed/3_dog" => &["a.png", "a.txt"],
        "class" => &["1_dog"],
        "class/1_dog" => &["a.png"],
        "notes" => &["a.png"],
        "acme/toy-sd" | "sd.safetensors" => &[],
        _ => return None,
    };
    Some(names.iter().map(|name| (*name).to_owned()).collect())
}

fn problems_of(line: &str) -> String {
    translate(line, nowhere).unwrap_err().problems.join("\n")
}

#[test]
fn the_documentations_command_line_becomes_a_job() {
    let line = r#"mpirun -n 2 accelerate launch --mixed_precision bf16 textual_inversion.py \
        --pretrained_model_name_or_path="/models/stable diffusion" --train_data_dir=./cat \
        --learnable_property="object" --placeholder_token="<cat-toy>" --initializer_token toy \
        --resolution=512 --train_batch_size=1 --gradient_accumulation_steps=4 --max_train_steps=3000 \
        --learning_rate=5.0e-04 --scale_lr --lr_scheduler="constant" --lr_warmup_steps=0 \
        --adam_epsilon 1e-08 --enable_xformers_memory_efficient_attention --output_dir="cat out""#;
    let translated = translate(line, nowhere).unwrap();
    assert_eq!(translated.output_dir.as_deref(), Some("cat out"));
    assert_eq!(translated.remarks.len(), 1);
    assert!(translated.remarks[0].contains("xformers"), "{:?}", translated.remarks);
    let job = parse_job_toml(&translated.job).unwrap();
    assert_eq!(
        (job.common.model.base.as_str(), job.textual_inversion().unwrap().data.images.as_str()),
        ("/models/stable diffusion", "./cat")
    );
    let TextualInversionSpec { word, train, .. } = job.textual_inversion().unwrap();
    assert_eq!((word.placeholder_token.as_str(), word.initializer_token.as_str()), ("<cat-toy>", "toy"));
    assert_eq!((train.learning_rate, train.adam_epsilon), (5e-4, 1e-8));
    assert_eq!((train.max_train_steps, train.gradient_accumulation_steps), (3000, 4));
    assert!(train.scale_lr);
    assert_eq!(train.lr_scheduler, LrScheduler::Constant);
    assert_eq!(train.mixed_precision, MixedPrecision::Bf16);
    assert_eq!(job.common.cluster.world_size, 2);
}

#[test]
fn a_repository_is_meant_where_no_folder_is() {
    let base = |line: &str, list: List| {
        let job = translate(line, list).unwrap().job;
        job.lines().filter(|line| line.starts_with("base")).collect::<String>()
    };
    let line = "--pretrained_model_name_or_path acme/toy-sd --revision v1 --variant fp16";
    assert_eq!(base(line, nowhere), "base = \"hf://acme/toy-sd\"");
    assert_eq!(base(line, folders), "base = \"acme/toy-sd\"");
    assert_eq!(base("--pretrained_model_name_or_path ./acme/sd", nowhere), "base = \"./acme/sd\"");
    let job = translate(line, nowhere).unwrap().job;
    assert!(job.contains("revision = \"v1\"\nvariant = \"fp16\""), "{job}");
}

#[test]
fn the_scripts_own_precision_counts_more_than_the_launchers() {
    let line = "accelerate launch --mixed_precision=fp16 a/textual_inversion.py --mixed_precision bf16";
    assert!(translate(line, nowhere).unwrap().job.contains("mixed_precision = \"bf16\""));
}

#[test]
fn passes_count_as_little_as_in_the_script() {
    let line = "--num_train_epochs 3 --repeats=10 --pretrained_model_name_or_path m --train_data_dir d \
        --placeholder_token x --initializer_token y";
    let translated = translate(line, nowhere).unwrap();
    let train = parse_job_toml(&translated.job).unwrap().textual_inversion().unwrap().train.clone();
    assert_eq!((train.max_train_steps, train.num_train_epochs, train.repeats), (5000, Some(3), 10));
    assert!(translated.remarks[0].contains("5000"), "{:?}", translated.remarks);
    let given = translate(&format!("{line} --max_train_steps 7"), nowhere).unwrap();
    assert_eq!(parse_job_toml(&given.job).unwrap().textual_inversion().unwrap().train.max_train_steps, 7);
    assert_eq!(given.remarks, Vec::<String>::new());
}

#[test]
fn a_run_of_the_script_is_gone_on_with_as_there() {
    let line = "--resume_from_checkpoint=latest --checkpointing_steps 100 --checkpoints_total_limit=3 \
        --pretrained_model_name_or_path m --train_data_dir d --placeholder_token x --initializer_token y";
    let train = parse_job_toml(&translate(line, nowhere).unwrap().job)
        .unwrap()
        .textual_inversion()
        .unwrap()
        .train
        .clone();
    assert_eq!((train.checkpointing_steps, train.checkpoints_total_limit), (100, 3));
    assert_eq!(train.resume_from_checkpoint, "latest");
    let folder = translate(&line.replace("latest", "out/checkpoint-200"), nowhere).unwrap().job;
    assert_eq!(
        parse_job_toml(&folder).unwrap().textual_inversion().unwrap().train.resume_from_checkpoint,
        "out/checkpoint-200"
    );
    let step = translate(&line.replace("latest", "checkpoint-200"), nowhere).unwrap().job;
    assert_eq!(
        parse_job_toml(&step).unwrap().textual_inversion().unwrap().train.resume_from_checkpoint,
        "checkpoint-200"
    );
}

#[test]
fn all_problems_are_told_at_once() {
    let line =
        "--resolution big --learning_rat 1 --scale_lr=1 --push_to_hub --seed --train_data_dir $DIR stray";
    let problems = problems_of(line);
    for words in [
        "--resolution: \"big\" is not a number",
        "--learning_rat is not an option of textual_inversion.py; did you mean --learning_rate?",
        "--scale_lr takes no value",
        "--push_to_hub: ",
        "--seed needs a value",
        "--train_data_dir: \"$DIR\" has a variable",
        "\"stray\" is not an option",
    ] {
        assert!(problems.contains(words), "{words:?} is missing in:\n{problems}");
    }
    assert!(problems_of("--placeholder_token '<x").contains("quotation mark"));
}

#[test]
fn previews_carry_over_and_other_trackers_become_tensorboard() {
    let line = "--validation_prompt 'a <x>' --num_validation_images 2 --validation_steps=50 --report_to";
    for (tracker, remarks) in [("tensorboard", 0), ("wandb", 1), ("all", 1)] {
        let translated = translate(&format!("{line} {tracker}"), nowhere).unwrap();
        assert_eq!(translated.remarks.len(), remarks, "{:?}", translated.remarks);
        for written in [
            "validation_prompt = \"a <x>\"",
            "num_validation_images = 2",
            "validation_steps = 50",
            "report_to = \"tensorboard\"",
        ] {
            assert!(translated.job.contains(written), "{written} is missing in {}", translated.job);
        }
    }
    assert!(problems_of("--validation_epochs 3").contains("--validation_steps"));
}

#[test]
fn the_scripts_name_chooses_and_an_unknown_one_is_told() {
    for script in SCRIPTS {
        let (option, wrong) = match script.name {
            "benchmark.py" => ("image_size", "image_sise"),
            _ => ("resolution", "rezolution"),
        };
        let line = format!("python ./examples/{} --{option}=64", script.name);
        let job = translate(&line, nowhere).map_or_else(|error| error.rest, |translated| translated.job);
        assert!(job.starts_with(&format!("kind = \"{}\"", script.kind)), "{job}");
        let unknown = translate(&line.replace(option, wrong), nowhere).unwrap_err();
        let says = format!("--{wrong} is not an option of {}; did you mean --{option}?", script.name);
        assert_eq!((unknown.script, &unknown.problems[0]), (script.name, &says));
    }
    for other in ["sdxl_train_network.py", "train_text_to_image_sdxl.py"] {
        let problem = problems_of(&format!("accelerate launch {other} --seed 1"));
        assert!(problem.starts_with(&format!("{other} is not a script")), "{problem}");
        assert!(SCRIPTS.iter().all(|script| problem.contains(script.name)), "{problem}");
    }
}

/// A row for each option of the parser, once, and for no other.
#[test]
fn all_options_of_the_scripts_are_known() {
    let parsers = [
        option_lists::TEXTUAL_INVERSION,
        option_lists::TEXT_TO_IMAGE_LORA,
        option_lists::DREAMBOOTH_LORA,
        option_lists::NETWORK,
        option_lists::TEXT_TO_IMAGE,
        option_lists::BENCHMARK,
    ];
    for (script, parser) in SCRIPTS.iter().zip(parsers) {
        let mut known: Vec<&str> = script.rows().map(|row| row.0).collect();
        known.sort_unstable();
        let mut theirs: Vec<&str> = parser.split(' ').collect();
        theirs.sort_unstable();
        assert_eq!(known, theirs, "{}", script.name);
        for (option, _) in script.without {
            assert!(theirs.contains(option), "{option}");
        }
    }
    let mut known: Vec<&str> = each(super::network::tables::NETWORK_ARGS).map(|row| row.0).collect();
    known.sort_unstable();
    let mut theirs: Vec<&str> = option_lists::NETWORK_ARGS.split(' ').collect();
    theirs.sort_unstable();
    assert_eq!(known, theirs);
}

/// The job that a line becomes.
fn job_of(line: &str) -> String {
    translate(line, folders).unwrap_or_else(|error| panic!("{error:?}")).job
}

/// Places of the job that a script's tables and defaults name.
fn places(script: &Script) -> BTreeSet<(&'static str, &'static str)> {
    let of_row = |row: Row| match row.2 {
        Becomes::Key(section, key) | Becomes::KeyBeside(section, key, _) | Becomes::Sets(section, key, _) => {
            Some((section, key))
        }
        Becomes::By(place, _) | Becomes::Noted(place) => place.split_once('.'),
        Becomes::LeftOut(_) | Becomes::Only(..) | Becomes::Refused(_) => None,
    };
    let more = each(super::network::tables::NETWORK_ARGS).chain(each(super::network::tables::OPTIMIZER_ARGS));
    let more = more.filter(|_| script.name == "train_network.py");
    let rows = script.rows().chain(more).filter_map(of_row);
    rows.chain(script.defaults.iter().map(|(section, key, _)| (*section, *key))).collect()
}

#[test]
fn every_known_option_has_a_place_in_the_job_file() {
    for script in SCRIPTS {
        for (section, key) in places(script) {
            let head = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
            let error =
                parse_job_toml(&format!("kind = \"{}\"\n{head}{key} = []\n", script.kind)).unwrap_err();
            let field = format!("{section}.{key}").trim_start_matches('.').to_owned();
            let is_unknown =
                error.violations.iter().any(|one| one.field == field && one.problem.contains("unknown"));
            assert!(!is_unknown, "{field} is no key of a job");
        }
    }
}

/// Each option of the script is in the page's table once, and the last column says what becomes of it.
#[test]
fn the_page_for_those_who_come_from_diffusers_has_each_option() {
    let page = include_str!("../../../../../docs/coming-from-diffusers.md");
    let mut said = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        for option in cells[0].split('`').skip(1).step_by(2).filter(|option| !option.starts_with('-')) {
            assert!(said.insert(option, cells[2]).is_none(), "{option} stands twice");
        }
    }
    let mut said_of = |option: &str| said.remove(option).unwrap_or_else(|| panic!("{option} is missing"));
    for (option, _, becomes) in textual_inversion::SCRIPT.rows() {
        let here = said_of(option);
        let starts = match becomes {
            Becomes::Key("train", key) if key == option && option != "seed" => "same",
            Becomes::By("train.report_to", _) => "same",
            Becomes::LeftOut(_) => "left out",
            Becomes::Refused(_) => "not here, refused",
            _ => "different",
        };
        assert!(here.starts_with(starts), "{option}: {here}");
    }
    let rest: Vec<&str> = said.into_keys().collect();
    assert_eq!(rest, ["num_processes"]);
}
