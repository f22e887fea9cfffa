//! Locations of models, pictures and files.

use super::*;

#[test]
fn places_that_nobody_can_reach_are_refused() {
    for (old, field, wrongs) in [
        ("/models/sd", "model.base", ["gs://bucket/m", "https://x/y", "file:///models/sd"]),
        ("./pictures", "data.images", ["hf://datasets/x", "s3://bucket/pictures", "artifact://md5/00"]),
    ] {
        for wrong in wrongs {
            let found = violation(&SMALLEST.replace(old, wrong));
            assert_eq!(found.field, field);
            assert!(found.problem.contains("not supported"), "{found}");
        }
        assert_eq!(violation(&SMALLEST.replace(old, "")).field, field);
        assert_eq!(violation(&SMALLEST.replace(old, "a\\u0000b")).field, field);
        assert_eq!(violation(&SMALLEST.replace(old, &"x".repeat(4097))).field, field);
    }
    let short_hash = SMALLEST.replace("./pictures", "artifact://sha256/00");
    assert_eq!(violation(&short_hash).field, "data.images");
    assert!(
        parse_job_toml(&SMALLEST.replace("/models/sd", "C:/a://b")).is_ok(),
        "a colon in a path is not a scheme"
    );
}

#[test]
fn models_may_be_in_a_repository_or_a_bucket() {
    let at = |line: &str| SMALLEST.replace("base = \"/models/sd\"", line);
    let spec =
        parse_job_toml(&at("base = \"hf://acme/toy-sd\"\nrevision = \"v1\"\nvariant = \"fp16\"")).unwrap();
    let model = HubModel { repository: "acme/toy-sd".into(), revision: "v1".into() };
    assert_eq!(spec.common.model.location().unwrap(), ModelLocation::Hub(model));
    assert_eq!(spec.common.model.variant, "fp16");
    // Where it is remains as it is written, wherever the job file lies.
    let mut resolved = spec.clone();
    resolved.resolve_paths(Path::new("/jobs")).unwrap();
    assert_eq!(resolved.common.model, spec.common.model);
    assert!(parse_job_toml(&SMALLEST.replace("/models/sd", "s3://models/toy/sd")).is_ok());
    for (line, field) in [
        ("base = \"hf://toy-sd\"", "model.base"),
        ("base = \"s3://models/../x\"", "model.base"),
        ("base = \"hf://acme/toy-sd\"\nrevision = \"../x\"", "model.revision"),
        ("base = \"/models/sd\"\nrevision = \"main\"", "model.revision"),
        ("base = \"/models/sd\"\nvariant = \"../fp16\"", "model.variant"),
    ] {
        let found = violation(&at(line));
        assert_eq!(found.field, field, "{found}");
        assert!(found.line.is_some(), "{found}");
    }
}

#[test]
fn relative_paths_are_relative_to_the_job_file() {
    let mut spec = parse_job_toml(&with("debug", "trace_dir = \"t/../u\"")).unwrap();
    spec.resolve_paths(Path::new("/home/me/jobs")).unwrap();
    assert_eq!(spec.common.model.base, "/models/sd");
    assert_eq!(spec.textual_inversion().unwrap().data.images, "/home/me/jobs/pictures");
    assert_eq!(spec.common.debug.trace_dir, "/home/me/jobs/t/../u");
    let again = spec.clone();
    spec.resolve_paths(Path::new("/elsewhere")).unwrap();
    assert_eq!(spec, again);

    let uri = crate::ids::ContentHash::of(b"x").uri();
    let mut uploaded = parse_job_toml(&SMALLEST.replace("./pictures", &uri)).unwrap();
    uploaded.resolve_paths(Path::new("/jobs")).unwrap();
    assert_eq!(
        (uploaded.textual_inversion().unwrap().data.images.clone(), uploaded.common.debug.trace_dir.clone()),
        (uri, String::new())
    );

    let mut spec = parse_job_toml(SMALLEST).unwrap();
    let error = spec.resolve_paths(Path::new("jobs")).unwrap_err();
    assert_eq!(error.violations[0].field, "data.images");
}
