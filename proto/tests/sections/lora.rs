//! `lora` of the job spec, and what its kind has of `data`.

use ringtune_proto::{
    convert::{spec_from_wire, spec_to_wire},
    v1,
};

#[test]
fn adapters_go_over_the_wire_unchanged() {
    let sent = v1::JobSpec {
        kind: "lora".to_owned(),
        model: Some(v1::ModelSpec { base: "/m".to_owned(), ..Default::default() }),
        data: Some(v1::DataSpec {
            images: "/i".to_owned(),
            instance_prompt: "a toy".to_owned(),
            masks: "/m".to_owned(),
            class_images: "/c".to_owned(),
            class_prompt: "a thing".to_owned(),
            ..Default::default()
        }),
        train: Some(v1::TrainSpec {
            max_train_steps: Some(3),
            use_ema: Some(true),
            ema_decay: Some(0.5),
            ema_update_after_step: Some(2),
            input_perturbation: Some(0.1),
            random_flip: Some(true),
            num_class_images: Some(7),
            prior_loss_weight: Some(0.5),
            train_text_encoder: Some(true),
            text_encoder_learning_rate: Some(1e-5),
            ..Default::default()
        }),
        lora: Some(Box::new(v1::LoraSpec {
            rank: Some(8),
            alpha: Some(0.5),
            targets: vec!["attn2.to_v".to_owned(), "proj_in".to_owned()],
            conv_rank: Some(4),
            conv_alpha: Some(2.0),
            rank_pattern: [("mid_block".to_owned(), 2.0)].into(),
            alpha_pattern: [("mid_block".to_owned(), 0.5)].into(),
            dropout: Some(0.25),
            rank_dropout: Some(0.125),
            use_dora: Some(false),
            initializer_lora: "/l".to_owned(),
        })),
        ..Default::default()
    };
    let spec = spec_from_wire(sent.clone()).unwrap();
    let wire = spec_to_wire(&spec);
    assert_eq!((&wire.lora, &wire.data), (&sent.lora, &sent.data));
    assert_eq!(spec_from_wire(wire).unwrap(), spec);
    let source = "hf://datasets/acme/toys@v1".to_owned();
    let sent = v1::JobSpec {
        data: Some(v1::DataSpec { source, alpha_mask: Some(true), ..Default::default() }),
        train: Some(v1::TrainSpec { max_train_steps: Some(3), ..Default::default() }),
        ..sent
    };
    let wire = spec_to_wire(&spec_from_wire(sent.clone()).unwrap());
    assert_eq!(wire.data, sent.data);
}
