//! What kind `unet_finetune` has of `train`.

use ringtune_proto::{
    convert::{spec_from_wire, spec_to_wire},
    v1,
};

#[test]
fn a_unet_goes_over_the_wire_unchanged() {
    let sent = v1::JobSpec {
        kind: "unet_finetune".to_owned(),
        model: Some(v1::ModelSpec { base: "/m".to_owned(), ..Default::default() }),
        data: Some(v1::DataSpec { synthetic_samples: Some(9), ..Default::default() }),
        train: Some(v1::TrainSpec {
            max_train_steps: Some(3),
            trainable: vec!["attn2.to_k".to_owned(), "up_blocks.1".to_owned()],
            init_from: "scratch".to_owned(),
            gradient_checkpointing: Some(true),
            offload: "disk".to_owned(),
            exchange: "local".to_owned(),
            shard_optimizer: Some(false),
            local_steps: Some(7),
            outer_learning_rate: Some(0.5),
            outer_momentum: Some(0.25),
            attention: "sliced".to_owned(),
            use_ema: Some(true),
            ema_half_life: Some(1000.0),
            min_timestep: Some(1),
            cache_latents: Some(false),
            ..Default::default()
        }),
        ..Default::default()
    };
    let spec = spec_from_wire(sent.clone()).unwrap();
    let wire = spec_to_wire(&spec);
    let (train, own) = (wire.train.clone().unwrap(), sent.train.unwrap());
    assert_eq!((&train.trainable, &train.init_from), (&own.trainable, &own.init_from));
    assert_eq!((train.gradient_checkpointing, &train.offload), (own.gradient_checkpointing, &own.offload));
    assert_eq!((&train.exchange, train.shard_optimizer), (&own.exchange, own.shard_optimizer));
    let rounds = |spec: &v1::TrainSpec| (spec.local_steps, spec.outer_learning_rate, spec.outer_momentum);
    assert_eq!(rounds(&train), rounds(&own));
    assert_eq!((&train.attention, train.ema_half_life), (&own.attention, own.ema_half_life));
    assert_eq!((train.min_timestep, train.cache_latents), (own.min_timestep, own.cache_latents));
    assert_eq!(wire.data.clone().unwrap().synthetic_samples, Some(9));
    assert_eq!(spec_from_wire(wire).unwrap(), spec);
}
