//! `generate_text` of the job spec.

use ringtune_proto::{
    convert::{spec_from_wire, spec_to_wire},
    v1,
};

#[test]
fn texts_go_over_the_wire_unchanged() {
    let sent = v1::JobSpec {
        kind: "generate_text".to_owned(),
        model: Some(v1::ModelSpec { base: "/m".to_owned(), ..Default::default() }),
        generate_text: Some(Box::new(v1::GenerateTextSpec {
            prompts: vec!["a".to_owned(), String::new()],
            num_samples: Some(2),
            max_new_tokens: Some(3),
            temperature: Some(0.0),
            top_k: Some(4),
            top_p: Some(0.5),
            seed: Some(9),
            stop_at_end_of_text: Some(false),
            mixed_precision: Some("no".to_owned()),
        })),
        ..Default::default()
    };
    let spec = spec_from_wire(sent.clone()).unwrap();
    let wire = spec_to_wire(&spec);
    assert_eq!(wire.generate_text, sent.generate_text);
    assert_eq!(spec_from_wire(wire).unwrap(), spec);
}
