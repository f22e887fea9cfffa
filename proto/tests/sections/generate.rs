//! `generate` of the job spec.

use ringtune_proto::{
    convert::{spec_from_wire, spec_to_wire},
    v1,
};

#[test]
fn a_generate_job_goes_over_the_wire_unchanged() {
    let sent = v1::JobSpec {
        kind: "generate".to_owned(),
        model: Some(v1::ModelSpec { base: "/m".to_owned(), ..Default::default() }),
        generate: Some(v1::GenerateSpec {
            prompts: vec!["a".to_owned(), "b".to_owned()],
            negative_prompt: "c".to_owned(),
            embeddings: vec!["/e".to_owned()],
            tokens: vec!["<e>".to_owned()],
            count: Some(2),
            steps: Some(3),
            guidance_scale: Some(4.5),
            width: Some(64),
            height: Some(32),
            seed: Some(9),
            scheduler: "lms".to_owned(),
            batch: Some(2),
            sheet: Some(true),
            mixed_precision: Some("bf16".to_owned()),
            loras: vec![v1::DrawnLora { file: "/l".to_owned(), weight: Some(0.5) }],
        }),
        ..Default::default()
    };
    let spec = spec_from_wire(sent.clone()).unwrap();
    let wire = spec_to_wire(&spec);
    assert_eq!(wire.generate, sent.generate);
    assert_eq!(spec_from_wire(wire).unwrap(), spec);
}
