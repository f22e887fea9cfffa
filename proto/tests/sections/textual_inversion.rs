//! `data`, `train` and `concepts` of the job spec.

use ringtune_shared::job::{
    JobSpec, PredictionType, ReportTo, kinds::textual_inversion::TextualInversionSpec,
    pictures::ValidationSpec,
};

use ringtune_proto::{
    convert::{spec_from_wire, spec_to_wire},
    v1,
};

fn work(spec: &JobSpec) -> &TextualInversionSpec {
    spec.textual_inversion().unwrap()
}

fn sent() -> v1::JobSpec {
    v1::JobSpec {
        kind: "textual_inversion".to_owned(),
        model: Some(v1::ModelSpec {
            base: "hf://acme/sd".to_owned(),
            revision: "v1".to_owned(),
            variant: "fp16".to_owned(),
            prediction_type: Some("v_prediction".to_owned()),
            tokenizer: Some("/models/tokenizer".to_owned()),
        }),
        data: Some(v1::DataSpec { images: "/images".to_owned(), ..Default::default() }),
        train: Some(v1::TrainSpec {
            placeholder_token: "<star>".to_owned(),
            initializer_token: "star".to_owned(),
            learning_rates: Some("0.02:7, 1e-3".to_owned()),
            seed: Some(i64::MAX),
            templates: vec!["a photo of a {}".to_owned()],
            adam_beta1: Some(0.8),
            adam_beta2: Some(0.9),
            adam_weight_decay: Some(0.1),
            adam_epsilon: Some(1e-6),
            lr_num_cycles: Some(2),
            max_grad_norm: Some(0.5),
            snr_gamma: Some(5.0),
            noise_offset: Some(0.1),
            checkpointing_steps: Some(3),
            checkpoints_total_limit: Some(2),
            resume_from_checkpoint: Some("latest".to_owned()),
            save_as_full_pipeline: None,
            validation_loss_steps: Some(50),
            validation_loss_samples: Some(24),
            select_best: Some(true),
            early_stop_patience: Some(3),
            validation_prompt: Some("a <star>".to_owned()),
            num_validation_images: Some(2),
            validation_steps: Some(10),
            report_to: Some("none".to_owned()),
            rescale_betas_zero_snr: Some(true),
            ..Default::default()
        }),
        cluster: Some(v1::ClusterSpec { world_size: Some(3), ..Default::default() }),
        ..Default::default()
    }
}

#[test]
fn a_resolved_spec_goes_over_the_wire_unchanged() {
    let spec = spec_from_wire(sent()).unwrap();
    assert_eq!(spec.common.cluster.min_world_size, 3);
    assert_eq!((spec.common.model.revision.as_str(), spec.common.model.variant.as_str()), ("v1", "fp16"));
    let train = &work(&spec).train;
    assert_eq!(train.max_train_steps, 5000);
    assert_eq!((train.adam_beta1, train.adam_beta2), (0.8, 0.9));
    assert_eq!((train.adam_weight_decay, train.adam_epsilon), (0.1, 1e-6));
    assert_eq!((train.lr_num_cycles, train.max_grad_norm), (2, 0.5));
    assert_eq!((train.snr_gamma, train.noise_offset), (5.0, 0.1));
    assert_eq!((train.checkpointing_steps, train.checkpoints_total_limit), (3, 2));
    assert_eq!(train.resume_from_checkpoint, "latest");
    let ValidationSpec { validation_loss_steps, validation_loss_samples, .. } = train.validation;
    assert_eq!((validation_loss_steps, validation_loss_samples), (50, 24));
    assert!(train.validation.select_best && train.validation.early_stop_patience == 3);
    let previews = &train.previews;
    assert_eq!(previews.validation_prompt, "a <star>");
    assert_eq!((previews.num_validation_images, previews.validation_steps), (2, 10));
    assert_eq!(train.report_to, ReportTo::Nothing);
    assert!(train.rescale_betas_zero_snr);
    assert_eq!(spec.common.model.prediction_type, Some(PredictionType::VPrediction));
    assert_eq!(spec.common.model.tokenizer, "/models/tokenizer");
    assert_eq!((train.learning_rate, train.lr_warmup_steps), (0.02, 0));
    assert_eq!(train.learning_rates.as_ref().map(|rates| rates.at(8)), Some(1e-3));
    let wire = spec_to_wire(&spec);
    assert_eq!(spec_from_wire(wire.clone()).unwrap(), spec);
    assert_eq!(spec_to_wire(&spec), wire);
}

/// A pipeline is made beside a plain folder only, and an embedding is not a start beside words, so that they need a
/// job of their own.
#[test]
fn a_pipeline_and_an_embedding_that_are_asked_for_go_over_the_wire() {
    let mut plain = sent();
    plain.model = Some(v1::ModelSpec { base: "/models/sd".to_owned(), ..Default::default() });
    if let Some(train) = &mut plain.train {
        train.save_as_full_pipeline = Some(true);
        train.initializer_token.clear();
        train.initializer_embedding = "/old.pt".to_owned();
    }
    let spec = spec_from_wire(plain).unwrap();
    assert!(work(&spec).train.save_as_full_pipeline);
    assert_eq!(work(&spec).word.initializer_embedding, "/old.pt");
    assert_eq!(spec_from_wire(spec_to_wire(&spec)).unwrap(), spec);
}

#[test]
fn several_concepts_go_over_the_wire_unchanged() {
    let concept = |token: &str| v1::ConceptSpec {
        placeholder_token: token.to_owned(),
        initializer_token: "star".to_owned(),
        images: "/images".to_owned(),
        ..Default::default()
    };
    let own = v1::ConceptSpec {
        initializer_token: String::new(),
        initializer_embedding: "/old.pt".to_owned(),
        num_vectors: Some(3),
        learnable_property: Some("style".to_owned()),
        ..concept("<b>")
    };
    let mut several = v1::JobSpec { concepts: vec![concept("<a>"), own], data: None, ..sent() };
    if let Some(train) = &mut several.train {
        train.placeholder_token.clear();
        train.initializer_token.clear();
    }
    let spec = spec_from_wire(several).unwrap();
    assert_eq!(work(&spec).concepts[0].templates, ["a photo of a {}"]);
    assert_eq!((work(&spec).concepts[1].num_vectors, work(&spec).concepts[1].templates.len()), (3, 0));
    assert_eq!(work(&spec).concepts[1].initializer_embedding, "/old.pt");
    assert_eq!(spec_from_wire(spec_to_wire(&spec)).unwrap(), spec);
}

#[test]
fn what_is_missing_or_impossible_is_named() {
    let mut wrong = sent();
    wrong.model = None;
    if let Some(train) = &mut wrong.train {
        train.placeholder_token.clear();
        train.num_vectors = Some(-1);
    }
    let error = spec_from_wire(wrong).unwrap_err();
    let fields: Vec<&str> = error.violations.iter().map(|one| one.field.as_str()).collect();
    for field in ["model.base", "train.placeholder_token", "train.num_vectors"] {
        assert!(fields.contains(&field), "{field} is not in {fields:?}");
    }
}
