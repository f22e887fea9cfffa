use ringtune_shared::job::{
    LrScheduler, MixedPrecision, kinds::textual_inversion::TextualInversionSpec, parse_job_toml,
};

use super::*;

fn nowhere(_: &str) -> bool {
    false
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
    let base = |line: &str, is_there: fn(&str) -> bool| {
        let job = translate(line, is_there).unwrap().job;
        job.lines().filter(|line| line.starts_with("base")).collect::<String>()
    };
    let line = "--pretrained_model_name_or_path acme/toy-sd --revision v1 --variant fp16";
    assert_eq!(base(line, |_| false), "base = \"hf://acme/toy-sd\"");
    assert_eq!(base(line, |path| path == "acme/toy-sd"), "base = \"acme/toy-sd\"");
    assert_eq!(base("--pretrained_model_name_or_path ./acme/sd", |_| false), "base = \"./acme/sd\"");
    let job = translate(line, |_| false).unwrap().job;
    assert!(job.contains("revision = \"v1\"\nvariant = \"fp16\""), "{job}");
}

#[test]
fn the_scripts_own_precision_counts_more_than_the_launchers() {
    let line = "accelerate launch --mixed_precision=fp16 t.py --mixed_precision bf16";
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
fn every_known_option_has_a_place_in_the_job_file() {
    for (name, takes, section, key) in KNOWN {
        let value = match takes {
            Nothing => String::new(),
            Number => " 1".to_owned(),
            Text => " x".to_owned(),
        };
        let job = translate(&format!("--{name}{value}"), nowhere).unwrap().job;
        // Other keys are missing, and values may not be allowed; but the key is known.
        let error = parse_job_toml(&job).unwrap_err();
        let field = format!("{section}.{key}");
        let unknown =
            error.violations.iter().any(|one| one.field == field && one.problem.contains("unknown"));
        assert!(!unknown, "{error}");
    }
}

/// Each option of the script is in the page's table once, and the last column says what becomes of it.
#[test]
fn the_page_for_those_who_come_from_diffusers_has_each_option() {
    let page = include_str!("../../../../docs/coming-from-diffusers.md");
    let mut said = BTreeMap::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        for option in cells[0].split('`').skip(1).step_by(2).filter(|option| !option.starts_with('-')) {
            assert!(said.insert(option, cells[2]).is_none(), "{option} stands twice");
        }
    }
    let mut said_of = |option: &str| said.remove(option).unwrap_or_else(|| panic!("{option} is missing"));
    for (option, _, section, key) in KNOWN {
        let here = said_of(option);
        let is_same = *section == "train" && option == key;
        assert!(
            here.starts_with(if is_same { "same" } else { "different" }) || *option == "seed",
            "{option}: {here}"
        );
    }
    for (option, ..) in WITHOUT_EFFECT {
        assert!(said_of(option).starts_with("left out"), "{option}");
    }
    for (option, ..) in REFUSED {
        assert!(said_of(option).starts_with("not here, refused"), "{option}");
    }
    let rest: Vec<&str> = said.into_keys().collect();
    assert_eq!(rest, ["num_processes", "output_dir", "report_to"]);
}
