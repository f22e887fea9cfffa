use super::*;
use crate::{
    checkpoint::{About, Numerics, deciding_options},
    ids::ContentHash,
    job::{
        Activity, ContentUse, JobKind, JobSpec, ModelLocation, PathUse, STORED_VERSION, Work, parse_job_toml,
    },
};

const JOB: &str = "kind = \"gpt2_finetune\"\n[model]\nbase = \"/m\"\n[gpt2]\ntokens = \"/t\"\n";

/// The job with these lines in `[gpt2]`.
fn job(lines: &str) -> JobSpec {
    parse_job_toml(&format!("{JOB}{lines}\n")).unwrap()
}

fn gpt2(lines: &str) -> Gpt2Spec {
    job(lines).gpt2().unwrap().clone()
}

/// The fields that are wrong with a job file, and what is said.
fn refused(text: &str) -> (Vec<String>, String) {
    let error = parse_job_toml(text).expect_err(text);
    (error.violations.iter().map(|one| one.field.clone()).collect(), error.to_string())
}

#[test]
fn what_is_left_out_takes_nanogpts_defaults() {
    let spec = job("");
    let expected = Gpt2Spec {
        tokens: "/t".to_owned(),
        init_from: Gpt2Init::Pretrained,
        n_layer: 0,
        n_head: 0,
        n_embd: 0,
        bias: true,
        block_size: 1024,
        batch_size: 12,
        gradient_accumulation_steps: 1,
        max_iters: 600_000,
        learning_rate: 6e-4,
        decay_lr: true,
        warmup_iters: 2000,
        lr_decay_iters: 0,
        min_lr: 6e-5,
        weight_decay: 0.1,
        beta1: 0.9,
        beta2: 0.95,
        grad_clip: 1.0,
        dropout: 0.0,
        eval_interval: 2000,
        eval_iters: 200,
        select_best: true,
        early_stop_patience: 0,
        seed: 1337,
        mixed_precision: MixedPrecision::Bf16,
        checkpointing_steps: 500,
        checkpoints_total_limit: 0,
        resume_from_checkpoint: String::new(),
        report_to: ReportTo::Tensorboard,
        compare_interval: 100,
        exchange: SumOrder::Exact,
        shard_optimizer: false,
    };
    assert_eq!(spec.work, Work::Gpt2Finetune(expected));
    assert_eq!((spec.kind(), spec.common.name.as_str()), (JobKind::Gpt2Finetune, "gpt2_finetune"));
    assert_eq!((spec.total_steps(), spec.global_microbatches()), (600_000, 1));
    assert_eq!((spec.mixed_precision(), spec.activity()), (MixedPrecision::Bf16, Activity::Training));
    assert_eq!((spec.may_stop_early(), spec.warning(), spec.needs_image_count()), (false, None, false));
}

/// Every value is another than the default.
const FULL: &str = "init_from = \"scratch\"\nn_layer = 2\nn_head = 3\nn_embd = 6\nbias = false\nblock_size = 7\n\
     batch_size = 8\ngradient_accumulation_steps = 9\nmax_iters = 10\nlearning_rate = 0.5\ndecay_lr = false\n\
     warmup_iters = 11\nlr_decay_iters = 12\nmin_lr = 0.25\nweight_decay = 0.75\nbeta1 = 0.125\nbeta2 = 0\n\
     grad_clip = 2.5\neval_interval = 13\neval_iters = 14\nselect_best = false\nearly_stop_patience = 15\n\
     seed = 16\nmixed_precision = \"no\"\ncheckpointing_steps = 17\ncheckpoints_total_limit = 18\n\
     resume_from_checkpoint = 500\nreport_to = \"none\"\ncompare_interval = 19\nexchange = \"fast\"\n\
     shard_optimizer = true\n[cluster]\nworld_size = 4\n";

#[test]
fn a_job_is_read_back_as_toml_as_json_and_as_it_is_stored() {
    for lines in ["", FULL, "tokens = \"s3://data/words\"", "eval_interval = 0"] {
        let text = format!("{JOB}{lines}");
        let text = if lines.starts_with("tokens") { text.replace("tokens = \"/t\"\n", "") } else { text };
        let spec = parse_job_toml(&text).unwrap();
        let toml = spec.to_toml().unwrap();
        assert!(!toml.contains("[train]") && !toml.contains("[data]"), "{toml}");
        assert_eq!(parse_job_toml(&toml).unwrap(), spec);
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(JobSpec::from_stored(STORED_VERSION, &json).unwrap(), spec);
        assert_eq!(JobSpec::from_stored(STORED_VERSION, &spec.to_stored().unwrap()).unwrap(), spec);
    }
    let spec = job(FULL);
    let full = spec.gpt2().unwrap();
    assert_eq!((full.n_layer, full.n_head, full.n_embd, full.bias), (2, 3, 6, false));
    assert_eq!((full.beta2, full.resume_from_checkpoint.as_str()), (0.0, "500"));
    assert_eq!((full.exchange, full.shard_optimizer), (SumOrder::Fast, true));
    assert_eq!((spec.global_microbatches(), spec.checkpoints_total_limit()), (36, 18));
    assert_eq!(spec.resume_option(), Some("gpt2.resume_from_checkpoint"));
    assert!(spec.may_stop_early());
    let damaged = spec.to_stored().unwrap().replace("\"gpt2\":", "\"gpt3\":");
    assert!(JobSpec::from_stored(STORED_VERSION, &damaged).is_err());
}

#[test]
fn what_follows_from_other_options_is_resolved() {
    for (rate, tenth) in [("6e-4", 6e-5), ("3e-4", 3e-5), ("1.0", 0.1), ("2.5e-4", 2.5e-5), ("1000", 100.0)] {
        assert_eq!(gpt2(&format!("learning_rate = {rate}")).min_lr, tenth, "{rate}");
    }
    assert_eq!(gpt2("min_lr = 0").min_lr, 0.0);
    let unjudged = gpt2("eval_interval = 0");
    assert_eq!((unjudged.eval_interval, unjudged.select_best), (0, false));
    assert_eq!(
        (gpt2("max_iters = 5000").decay_end(), gpt2("lr_decay_iters = 3000").decay_end()),
        (5000, 3000)
    );
    // The numbers of a curve that there is not.
    assert_eq!(gpt2("decay_lr = false\nmin_lr = 1\nlr_decay_iters = 1").min_lr, 1.0);
    let (short, flat) = (job("max_iters = 2000"), job("max_iters = 2000\ndecay_lr = false"));
    assert!(short.warning().unwrap().contains("gpt2.warmup_iters = 2000"));
    assert_eq!((flat.warning(), job("max_iters = 2001").warning()), (None, None));
}

#[test]
fn every_limit_is_told_by_its_field() {
    // The greatest that is allowed, and the least that is not.
    for (key, most, more) in [
        ("block_size", "16384\nbatch_size = 1", "16385\nbatch_size = 1"),
        ("batch_size", "1024", "1025"),
        ("gradient_accumulation_steps", "1024", "1025"),
        ("max_iters", "10000000", "10000001"),
        ("learning_rate", "1000", "1000.1"),
        ("warmup_iters", "10000000", "10000001"),
        ("lr_decay_iters", "10000000", "10000001"),
        ("min_lr", "6e-4", "6.1e-4"),
        ("weight_decay", "1000", "1001"),
        ("beta1", "0.999999", "1"),
        ("beta2", "0.999999", "1.0"),
        ("grad_clip", "1e6", "1.1e6"),
        ("dropout", "0.999999", "1.0"),
        ("eval_interval", "10000000", "10000001"),
        ("eval_iters", "65536", "65537"),
        ("early_stop_patience", "10000000", "10000001"),
        ("seed", "9223372036854775807", "-1"),
        ("checkpointing_steps", "10000000", "10000001"),
        ("checkpoints_total_limit", "10000000", "10000001"),
        ("compare_interval", "10000000", "10000001"),
    ] {
        gpt2(&format!("{key} = {most}"));
        let (fields, told) = refused(&format!("{JOB}{key} = {more}"));
        assert_eq!(fields, [format!("gpt2.{key}")], "{told}");
        let given = more.split('\n').next().unwrap();
        assert!(
            told.contains(&format!("got {}", given.trim_end_matches(".0"))) || given.contains('e'),
            "{told}"
        );
        assert!(told.contains("allowed: "), "{told}");
    }
    let wrong = "block_size = 0 | batch_size = 0 | gradient_accumulation_steps = 0 | max_iters = 0 \
        | learning_rate = 0 | learning_rate = nan | warmup_iters = -1 | lr_decay_iters = 1999 \
        | min_lr = -1e-9 | weight_decay = inf | beta1 = -0.1 | beta2 = nan | grad_clip = -1 \
        | dropout = -0.1 | dropout = nan | dropout = \"half\" | eval_interval = -1 | eval_iters = 0 \
        | early_stop_patience = -1 | compare_interval = 0 | checkpointing_steps = -1 \
        | checkpoints_total_limit = 1.5 | init_from = \"new\" | mixed_precision = \"fp16\" \
        | report_to = \"wandb\" | resume_from_checkpoint = \"lastest\" | bias = 1";
    for line in wrong.split(" | ") {
        let (fields, told) = refused(&format!("{JOB}{line}\n"));
        assert_eq!(fields, [format!("gpt2.{}", line.split(' ').next().unwrap())], "{told}");
    }
    // A job as a whole.
    for (lines, field) in [
        ("batch_size = 65\nblock_size = 16384", "gpt2.batch_size"),
        (
            "gradient_accumulation_steps = 1024\n[cluster]\nworld_size = 65",
            "gpt2.gradient_accumulation_steps",
        ),
        ("eval_interval = 0\nselect_best = true", "gpt2.select_best"),
        ("eval_interval = 0\nearly_stop_patience = 1", "gpt2.early_stop_patience"),
    ] {
        assert_eq!(refused(&format!("{JOB}{lines}\n")).0, [field]);
    }
}

#[test]
fn a_shape_belongs_to_a_model_from_scratch() {
    let scratch = format!("{JOB}init_from = \"scratch\"\n");
    for (key, most) in [("n_layer", 1024), ("n_head", 1 << 16), ("n_embd", 1 << 16)] {
        let field = [format!("gpt2.{key}")];
        parse_job_toml(&format!("{scratch}{key} = {most}")).unwrap();
        assert_eq!(refused(&format!("{scratch}{key} = {}", most + 1)).0, field);
        let (fields, told) = refused(&format!("{JOB}{key} = 1"));
        assert_eq!(fields, field);
        assert!(told.contains("only with init_from = \"scratch\""), "{told}");
    }
    assert_eq!(refused(&format!("{JOB}bias = false")).0, ["gpt2.bias"]);
    let (fields, told) = refused(&format!("{scratch}n_head = 5\nn_embd = 12"));
    assert_eq!(fields, ["gpt2.n_head"]);
    assert!(told.contains("got 5; allowed: a divisor of n_embd, which is 12"), "{told}");
    for (word, instead) in [("resume", "gpt2.resume_from_checkpoint"), ("gpt2-xl", "model.base")] {
        let (fields, told) = refused(&format!("{JOB}init_from = {word:?}"));
        assert_eq!(fields, ["gpt2.init_from"]);
        assert!(told.contains("allowed: pretrained, scratch") && told.contains(instead), "{told}");
    }
}

#[test]
fn what_a_language_model_does_not_have_is_refused() {
    for (from, to, field) in [
        ("base = \"/m\"", "base = \"/m/model.safetensors\"", "model.base"),
        ("base = \"/m\"", "base = \"/m\"\nvariant = \"fp16\"", "model.variant"),
        ("base = \"/m\"", "base = \"/m\"\nprediction_type = \"epsilon\"", "model.prediction_type"),
        ("base = \"/m\"", "base = \"/m\"\ntokenizer = \"/w\"", "model.tokenizer"),
        ("[gpt2]", "[debug]\ntrace_dir = \"/d\"\n[gpt2]", "debug.trace_dir"),
        ("[gpt2]", "[train]\nseed = 1\n[gpt2]", "train"),
        ("[gpt2]", "[data]\nimages = \"/i\"\n[gpt2]", "data"),
        ("[gpt2]", "[generate]\ncount = 1\n[gpt2]", "generate"),
        ("tokens = \"/t\"\n", "", "gpt2.tokens"),
        ("\"/t\"", "\"\"", "gpt2.tokens"),
        ("\"/t\"", "\"hf://a/b\"", "gpt2.tokens"),
        ("\"/t\"", "\"artifact://sha256/00\"", "gpt2.tokens"),
        ("\"/t\"", "\"s3://b\"", "gpt2.tokens"),
        ("\"/t\"", "\"/t\\u0000\"", "gpt2.tokens"),
    ] {
        let (fields, told) = refused(&JOB.replace(from, to));
        assert_eq!(fields, [field], "{told}");
    }
    assert!(refused(&JOB.replace("/t", "s3://B")).1.contains("bucket's name"));
    let foreign =
        "kind = \"generate\"\n[model]\nbase = \"/m\"\n[generate]\nprompts = [\"a\"]\n[gpt2]\nseed = 1\n";
    assert_eq!(refused(foreign).0, ["gpt2"]);
}

#[test]
fn it_names_its_tokens_and_its_checkpoint() {
    let mut spec = job("resume_from_checkpoint = \"out/checkpoint-5\"");
    spec.work.facts_mut().places().into_iter().for_each(|(_, used, path)| {
        if used == PathUse::Tokens {
            *path = "words".to_owned();
        }
    });
    spec.resolve_paths("/jobs".as_ref()).unwrap();
    let paths: Vec<_> = spec.paths().into_iter().map(|one| (one.field, one.used, one.path)).collect();
    let path = |field: &str, used, path: &str| (field.to_owned(), used, path.to_owned());
    assert_eq!(
        paths,
        [
            path("model.base", PathUse::Model, "/m"),
            path("gpt2.tokens", PathUse::Tokens, "/jobs/words"),
            path("gpt2.resume_from_checkpoint", PathUse::Checkpoint, "/jobs/out/checkpoint-5"),
        ]
    );
    assert_eq!(spec.gpt2().unwrap().tokens_location(), Ok(ModelLocation::Local("/jobs/words".into())));
    // What is uploaded or in a bucket is no path.
    let hash = ContentHash::of(b"checkpoint");
    let text = JOB.replace("/t", "s3://data/words");
    let mut spec = parse_job_toml(&format!("{text}resume_from_checkpoint = {:?}", hash.uri())).unwrap();
    assert_eq!(spec.contents(), [(ContentUse::Checkpoint, hash)]);
    spec.resolve_paths("/jobs".as_ref()).unwrap();
    assert_eq!(spec.paths().len(), 1);
    assert!(matches!(spec.gpt2().unwrap().tokens_location(), Ok(ModelLocation::S3(_))));
    let fields: Vec<&str> = spec.locations().into_iter().map(|(field, _)| field).collect();
    assert_eq!(fields, ["model.base", "gpt2.tokens"]);
    spec.resume_from_mut().unwrap().clear();
    assert_eq!((spec.resume_from(), spec.contents()), ("", Vec::new()));
}

#[test]
fn a_job_that_succeeded_says_how_far_it_came() {
    let spec = job("max_iters = 9\nearly_stop_patience = 3");
    assert_eq!(spec.success(9), "9 steps done");
    assert!(spec.success(5).starts_with("5 of 9 steps done: stopped early, "), "{}", spec.success(5));
}

#[test]
fn what_decides_no_bit_may_differ_and_everything_else_may_not() {
    let flat = "decay_lr = false\neval_interval = 4\nmax_iters = 9";
    let names =
        |lines: &str, step| -> Vec<String> { deciding_options(&job(lines), step).into_keys().collect() };
    let options = names(flat, 7);
    let any = "gpt2.tokens gpt2.gradient_accumulation_steps gpt2.mixed_precision gpt2.checkpointing_steps \
        gpt2.checkpoints_total_limit gpt2.resume_from_checkpoint gpt2.report_to gpt2.compare_interval \
        gpt2.shard_optimizer gpt2.max_iters gpt2.warmup_iters gpt2.lr_decay_iters gpt2.min_lr model.base";
    for option in any.split(' ') {
        assert!(!options.iter().any(|one| one == option), "{option}");
    }
    // A checkpoint from before it was there goes on, and another share is another training.
    let at = |lines: &str| deciding_options(&job(lines), 7);
    assert_eq!(at(&format!("{flat}\ndropout = 0")), at(flat));
    assert_eq!(at(&format!("{flat}\ndropout = 0.25"))["gpt2.dropout"], 0.25);
    // All others of the section, whatever comes to it.
    let all = serde_json::to_value(gpt2("")).unwrap();
    assert_eq!(
        options.iter().filter(|one| one.starts_with("gpt2.")).count(),
        all.as_object().unwrap().len() - 12
    );
    assert!(options.iter().any(|one| one == "cluster.world_size x gpt2.gradient_accumulation_steps"));

    let has_total = |lines: &str, step| names(lines, step).iter().any(|one| one == "gpt2.max_iters");
    // The rate falls towards it.
    assert!(has_total("max_iters = 9", 7));
    assert!(names("", 7).iter().any(|one| one == "gpt2.min_lr"));
    assert!(!has_total("lr_decay_iters = 5000", 7));
    // The last step is judged as it would not be otherwise.
    assert!(has_total(flat, 9) && !has_total(flat, 8));
    assert!(!has_total("decay_lr = false\neval_interval = 0\nmax_iters = 9", 9));
}

#[test]
fn sums_that_depend_on_the_ring_are_told_and_decide() {
    let ranks = |world_size: u32, min: u32, lines: &str| {
        job(&format!(
            "warmup_iters = 1\n{lines}\n[cluster]\nworld_size = {world_size}\nmin_world_size = {min}"
        ))
    };
    let fast = |world_size, min| ranks(world_size, min, "exchange = \"fast\"");
    // 1. What was there before there was a choice has the same bytes, and is read as exact.
    let exact = ranks(4, 1, "exchange = \"exact\"");
    assert_eq!(exact, ranks(4, 1, ""));
    assert!(!exact.to_stored().unwrap().contains("exchange") && !exact.ring_decides());
    assert_eq!(exact.warning(), None);
    // 2. A ring that may have fewer ranks is warned of.
    let warning = fast(4, 2).warning().unwrap();
    assert!(warning.contains("min_world_size = 2 of 4") && warning.contains("other bits"), "{warning}");
    assert!(fast(4, 2).ring_decides() && fast(4, 2).ring_may_shrink());
    assert!(fast(4, 4).ring_decides() && !fast(4, 4).ring_may_shrink());
    assert_eq!((fast(4, 4).warning(), fast(1, 1).warning(), fast(1, 1).ring_decides()), (None, None, false));
    let both = ranks(4, 2, "exchange = \"fast\"\nmax_iters = 1").warning().unwrap();
    assert!(both.contains("gpt2.warmup_iters = 1") && both.contains("; gpt2.exchange"), "{both}");
    let in_bf16 = ranks(4, 2, "exchange = \"fast_bf16\"");
    assert!(
        in_bf16.ring_decides() && in_bf16.warning().unwrap().starts_with("gpt2.exchange = \"fast_bf16\" and")
    );
    // 3. A checkpoint goes on with as many ranks, and in the same order; one from before the option is exact.
    let before = deciding_options(&exact, 7);
    assert!(!before.keys().any(|option| option.contains("exchange")), "{before:?}");
    let about = |spec: &JobSpec| About {
        step: 7,
        version: String::new(),
        model_hash: String::new(),
        data_hash: String::new(),
        options: deciding_options(spec, 7),
        numerics: Numerics { class: String::new(), threads_per_rank: 1, precision: String::new() },
        provenance: String::new(),
    };
    assert_eq!(about(&fast(4, 4)).check(&fast(4, 1)), Ok(()));
    let refused =
        about(&fast(4, 4)).check(&ranks(2, 2, "exchange = \"fast\"\ngradient_accumulation_steps = 2"));
    let refused = refused.unwrap_err();
    let expected = "cluster.world_size (with gpt2.exchange = \"fast\") was 4, now it is 2";
    assert!(refused.contains(expected) && !refused.contains(';'), "{refused}");
    let refused = about(&exact).check(&fast(4, 4)).unwrap_err();
    assert!(refused.contains("gpt2.exchange was not there, now it is \"fast\""), "{refused}");
    let refused = about(&fast(4, 4)).check(&ranks(4, 4, "exchange = \"fast_bf16\"")).unwrap_err();
    assert!(refused.contains("gpt2.exchange was \"fast\", now it is \"fast_bf16\""), "{refused}");
    assert_eq!(refused_word("exchange = \"sum\""), ["gpt2.exchange"]);
}

fn refused_word(line: &str) -> Vec<String> {
    let (fields, told) = refused(&format!("{JOB}{line}"));
    assert!(told.contains("allowed: exact, fast, fast_bf16"), "{told}");
    fields
}
