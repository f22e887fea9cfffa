//! Which inputs microbatches have.

use super::*;
use crate::{
    data::{
        ClipTokenizer,
        caption_words::CaptionOptions,
        prompts::{Caption, ConceptWords},
        templates,
    },
    engine::Moments,
    train::{ConceptSet, Posterior, TrainingImage},
};

pub(crate) const OPTIONS: BatchOptions = BatchOptions {
    seed: 3,
    microbatches: 3,
    batch: 2,
    scaling_factor: 0.5,
    num_train_timesteps: 10,
    min_timestep: 0,
    noise_offset: 0.0,
    random_flip: true,
    input_perturbation: 0.0,
    snr_gamma: None,
    caption_dropout: 0.0,
    prior_loss_weight: None,
    bucketed: false,
};

fn moments(mean: f32, logvar: f32) -> Moments {
    Moments { channels: 2, height: 1, width: 3, mean: vec![mean; 6], logvar: vec![logvar; 6] }
}

/// Images whose mean says which image it is, with next to no deviation; mirrored ones are negative.
pub(crate) fn set(images: usize) -> TrainingSet {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/toy-sd/tokenizer");
    let mut tokenizer = ClipTokenizer::open(folder.as_ref(), 77).unwrap();
    let placeholders = tokenizer.add_placeholders("<a>", 1).unwrap();
    let image = |number: usize| TrainingImage {
        plain: moments(number as f32 + 1.0, -60.0).into(),
        flipped: moments(-(number as f32) - 1.0, -60.0).into(),
    };
    let words = ConceptWords { tokenizer: &Arc::new(tokenizer), placeholders: &placeholders, others: &[] };
    let prompts = Prompts::encode(&words, &templates::OBJECT).unwrap();
    let images: Vec<TrainingImage> = (0..images).map(image).collect();
    TrainingSet {
        concepts: vec![ConceptSet { repeats: vec![1; images.len()], images, prompts, masks: Vec::new() }],
    }
}

pub(crate) fn in_memory(posterior: &mut Posterior) -> &mut Moments {
    let Posterior::Here(moments) = posterior else { panic!("{posterior:?}") };
    Arc::make_mut(moments)
}

/// Five images, of which the last two are higher than the others.
pub(crate) fn of_two_sizes() -> TrainingSet {
    let mut several = set(5);
    for image in &mut several.concepts[0].images[3..] {
        for view in [&mut image.plain, &mut image.flipped] {
            let moments = in_memory(view);
            (moments.height, moments.width) = (2, 1);
            moments.mean.truncate(4);
            moments.logvar.truncate(4);
        }
    }
    several
}

fn ids(prompts: &Prompts, template: usize) -> Vec<i64> {
    prompts.ids(template, 0, CaptionDraw::default()).unwrap().into_owned()
}

#[test]
fn repeated_images_are_shown_as_often_in_a_pass() {
    let mut repeated = set(3);
    repeated.concepts[0].repeats = vec![1, 3, 2];
    let mut builder = MicrobatchBuilder::new(repeated.clone(), OPTIONS).unwrap();
    // Six samples a step: a pass is a step.
    for step in 1..4 {
        let mut shown = [0; 3];
        for latents in
            (0..3).map(|microbatch| builder.build(step, microbatch, Arc::default()).unwrap().latents)
        {
            latents.chunks(6).for_each(|one| shown[(one[0].abs() * 2.0).round() as usize - 1] += 1);
        }
        assert_eq!(shown, [1, 3, 2]);
    }
    repeated.concepts[0].repeats = vec![u32::MAX; 3];
    assert!(MicrobatchBuilder::new(repeated, OPTIONS).is_err());
}

#[test]
fn captions_are_dropped_and_shuffled_by_the_sample_alone() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/toy-sd/tokenizer");
    let mut tokenizer = ClipTokenizer::open(folder.as_ref(), 77).unwrap();
    let placeholders = tokenizer.add_placeholders("<a>", 1).unwrap();
    let tokenizer = Arc::new(tokenizer);
    let words = ConceptWords { tokenizer: &tokenizer, placeholders: &placeholders, others: &[] };
    let caption = |texts: &[&str]| Caption {
        file: "a.png".to_owned(),
        texts: texts.iter().map(|&text| text.to_owned()).collect(),
    };
    let options = CaptionOptions { shuffle_tags: true, keep_tags: 1 };
    let captions = vec![caption(&["one, two, three"]), caption(&["red", "blue"])];
    let prompts = Prompts::encode(&words, &["[name], [caption]"]).unwrap();
    let prompts = prompts.with_captions(&words, captions, options).unwrap();
    let mut captioned = set(2);
    captioned.concepts[0].prompts = prompts;
    let options = BatchOptions { caption_dropout: 0.4, ..OPTIONS };
    let mut builder = MicrobatchBuilder::new(captioned, options).unwrap();
    let draws = Draws::new(3);
    let mut seen = std::collections::BTreeSet::new();
    for (step, microbatch) in (1..20).flat_map(|step| (0..3).map(move |microbatch| (step, microbatch))) {
        let inputs = builder.build(step, microbatch, Arc::default()).unwrap();
        for (place, sample) in [microbatch * 2, microbatch * 2 + 1].into_iter().enumerate() {
            let is_first = (inputs.latents[place * 6].abs() * 2.0).round() == 1.0;
            let text = match (draws.caption(step, sample) < 0.4, is_first) {
                (true, _) => "<a>, ",
                (false, false) if draws.caption_choice(step, sample, 2) == 0 => "<a>, red",
                (false, false) => "<a>, blue",
                (false, true) if draws.tag_order(step, sample, 2) == [0, 1] => "<a>, one, two, three",
                (false, true) => "<a>, one, three, two",
            };
            assert_eq!(inputs.input_ids[place * 77..][..77], tokenizer.encode(text).unwrap());
            seen.insert(text);
        }
    }
    assert_eq!(seen.len(), 5);
    let held_out = builder.build_held_out(1, 0, Arc::default()).unwrap();
    let text = ["<a>, red", "<a>, blue"][draws.caption_choice(0, 1, 2)];
    assert_eq!(held_out.input_ids[77..], tokenizer.encode(text).unwrap());
}

#[test]
fn a_microbatch_shows_images_of_one_bucket() {
    let several = of_two_sizes();
    assert!(MicrobatchBuilder::new(several.clone(), OPTIONS).is_err());
    let options = BatchOptions { bucketed: true, noise_offset: 0.1, ..OPTIONS };
    let mut builder = MicrobatchBuilder::new(several, options).unwrap();
    let mut order = BucketOrder::new(Draws::new(3), vec![vec![0, 1, 2], vec![3, 4]], 2, 3);
    // Buckets are in the order of their heights.
    for (step, microbatch) in (1..5).flat_map(|step| (0..3).map(move |microbatch| (step, microbatch))) {
        let inputs = builder.build(step, microbatch, Arc::default()).unwrap();
        let images = order.images_of(step, microbatch);
        let size = if images[0] < 3 { (1, 3) } else { (2, 1) };
        assert_eq!((inputs.latent_height, inputs.latent_width), size);
        let length = 2 * size.0 * size.1;
        assert_eq!((inputs.latents.len(), inputs.noise.len()), (2 * length, 2 * length));
        for (latents, image) in inputs.latents.chunks(length).zip(images) {
            assert_eq!((latents[0].abs() * 2.0).round(), *image as f32 + 1.0);
        }
    }
}

#[test]
fn inputs_are_what_the_draws_say() {
    let mut builder = MicrobatchBuilder::new(set(4), OPTIONS).unwrap();
    let draws = Draws::new(3);
    let mut order = ImageOrder::new(draws, LEARNED, 4, 6);
    let rows = Arc::new(vec![1.0f32; 5]);
    let inputs = builder.build(2, 1, Arc::clone(&rows)).unwrap();
    assert_eq!((inputs.batch, inputs.latent_channels), (2, 2));
    assert_eq!((inputs.latent_height, inputs.latent_width), (1, 3));
    assert_eq!(inputs.rows, rows);
    for (place, sample) in [2u32, 3].into_iter().enumerate() {
        let sign = if draws.flip(2, sample) { -1.0 } else { 1.0 };
        let expected = sign * (order.image_of(2, sample) as f32 + 1.0) * 0.5;
        assert!(inputs.latents[place * 6..][..6].iter().all(|latent| (latent - expected).abs() < 1e-6));
        assert_eq!(inputs.noise[place * 6..][..6], draws.noise(2, sample, 6));
        assert_eq!(inputs.timesteps[place], draws.timestep(2, sample, 0..10));
        let template = draws.template(2, sample, 27);
        assert_eq!(inputs.input_ids[place * 77..][..77], *ids(&set(1).concepts[0].prompts, template));
    }
}

#[test]
fn behind_each_sample_stands_one_of_the_class() {
    let mut both = set(5);
    let prompts = both.concepts[0].prompts.clone();
    let images = both.concepts[0].images.split_off(3);
    both.concepts[0].repeats.truncate(3);
    both.concepts.push(ConceptSet { images, repeats: vec![0; 2], prompts, masks: Vec::new() });
    let options = BatchOptions { prior_loss_weight: Some(0.25), ..OPTIONS };
    let mut builder = MicrobatchBuilder::new(both, options).unwrap();
    // Those that are learned from come in the order that they have without a class.
    let mut alone = MicrobatchBuilder::new(set(3), OPTIONS).unwrap();
    assert_eq!(builder.samples_of_pass(), 3);
    let image = |latents: &[f32]| (latents[0].abs() * 2.0).round() as usize - 1;
    let (draws, mut shown) = (Draws::new(3), [0; 5]);
    for (step, microbatch) in (1..5).flat_map(|step| (0..3).map(move |microbatch| (step, microbatch))) {
        let inputs = builder.build(step, microbatch, Arc::default()).unwrap();
        let plain = alone.build(step, microbatch, Arc::default()).unwrap();
        let images: Vec<usize> = inputs.latents.chunks(6).map(image).collect();
        assert_eq!(images[..2], *plain.latents.chunks(6).map(image).collect::<Vec<_>>());
        assert_eq!((inputs.batch, inputs.extras.sample_weights.clone()), (4, vec![2.0, 2.0, 0.5, 0.5]));
        let first = inputs.extras.place.unwrap().first_sample;
        assert_eq!(first, microbatch * 4);
        for (sample, noise) in (first..).zip(inputs.noise.chunks(6)) {
            assert_eq!(noise, draws.noise(step, sample, 6));
        }
        images.into_iter().for_each(|image| shown[image] += 1);
    }
    assert_eq!(shown, [8, 8, 8, 12, 12]);
    // The class is no sample that the job is judged on.
    let held_out = builder.build_held_out(2, 1, Arc::default()).unwrap();
    assert_eq!((held_out.batch, held_out.extras.sample_weights.len()), (2, 0));
    assert_eq!(held_out.latents.chunks(6).map(image).collect::<Vec<_>>(), [2, 0]);
}

#[test]
fn each_sample_shows_one_image_of_one_concept_with_that_concepts_prompts() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/toy-sd/tokenizer");
    let mut tokenizer = ClipTokenizer::open(folder.as_ref(), 77).unwrap();
    let words = ["<a>", "<b>"].map(|word| tokenizer.add_placeholders(word, 1).unwrap());
    // Another number of prompts for each: a draw is for those that there are.
    let tokenizer = &Arc::new(tokenizer);
    let known = |own: usize, others| ConceptWords { tokenizer, placeholders: &words[own], others };
    let prompts = [
        Prompts::encode(&known(0, &words[1..]), &templates::OBJECT).unwrap(),
        Prompts::encode(&known(1, &words[..1]), &["a {}", "the {}"]).unwrap(),
    ];
    let all = set(4).concepts.remove(0).images;
    let split = |at: usize| {
        let parts = [all[..at].to_vec(), all[at..].to_vec()].into_iter().zip(prompts.clone());
        let concept = |(images, prompts): (Vec<TrainingImage>, Prompts)| ConceptSet {
            repeats: vec![1; images.len()],
            images,
            prompts,
            masks: Vec::new(),
        };
        TrainingSet { concepts: parts.map(concept).collect() }
    };
    let draws = Draws::new(3);
    let mut order = ImageOrder::new(draws, LEARNED, 4, 6);
    let mut builder = MicrobatchBuilder::new(split(3), OPTIONS).unwrap();
    let mut shown = [0; 2];
    for (step, microbatch) in (1..5).flat_map(|step| (0..3).map(move |microbatch| (step, microbatch))) {
        let inputs = builder.build(step, microbatch, Arc::default()).unwrap();
        for (place, sample) in [microbatch * 2, microbatch * 2 + 1].into_iter().enumerate() {
            let number = order.image_of(step, sample);
            let concept = usize::from(number >= 3);
            shown[concept] += 1;
            // The image's number stands in its latents (see `set`).
            assert_eq!((inputs.latents[place * 6].abs() * 2.0).round(), number as f32 + 1.0);
            let template = draws.template(step, sample, prompts[concept].count());
            assert_eq!(inputs.input_ids[place * 77..][..77], *ids(&prompts[concept], template));
        }
    }
    assert_eq!(shown, [18, 6]);
    let nothing = ConceptSet { images: Vec::new(), repeats: Vec::new(), ..set(1).concepts.remove(0) };
    let empty = TrainingSet { concepts: vec![nothing] };
    assert!(MicrobatchBuilder::new(empty, OPTIONS).is_err());
    assert!(MicrobatchBuilder::new(split(4), OPTIONS).is_err());
}

#[test]
fn a_sample_of_the_posterior_has_its_deviation() {
    let [plain, flipped] = [(); 2].map(|()| moments(1.0, 2.0).into());
    let mut one = set(1);
    one.concepts[0].images = vec![TrainingImage { plain, flipped }];
    let mut builder = MicrobatchBuilder::new(one, OPTIONS).unwrap();
    let inputs = builder.build(1, 0, Arc::default()).unwrap();
    let draw = Draws::new(3).latent(1, 0, 6);
    for (latent, draw) in inputs.latents.iter().zip(&draw) {
        assert_eq!(*latent, (1.0 + 1f64.exp() as f32 * draw) * 0.5);
    }
}

#[test]
fn an_offset_moves_each_channel_of_the_noise_and_nothing_else() {
    let plain = MicrobatchBuilder::new(set(4), OPTIONS).unwrap().build(2, 1, Arc::default()).unwrap();
    let options = BatchOptions { noise_offset: 0.1, snr_gamma: Some(5.0), ..OPTIONS };
    let moved = MicrobatchBuilder::new(set(4), options).unwrap().build(2, 1, Arc::default()).unwrap();
    let draws = Draws::new(3);
    for (place, sample) in [2u32, 3].into_iter().enumerate() {
        let noise = draws.noise(2, sample, 6);
        let offsets = draws.noise_offset(2, sample, 2);
        assert_ne!(offsets[0], offsets[1]);
        let expected: Vec<f32> = (0..6).map(|i| noise[i] + 0.1f32 * offsets[i / 3]).collect();
        assert_eq!(moved.noise[place * 6..][..6], expected);
    }
    assert_eq!((plain.snr_gamma, moved.snr_gamma), (None, Some(5.0)));
    assert_eq!(crate::engine::Microbatch { noise: plain.noise.clone(), snr_gamma: None, ..moved }, plain);
}

#[test]
fn microbatches_of_a_step_are_the_same_however_they_are_cut() {
    let mut pairs = MicrobatchBuilder::new(set(4), OPTIONS).unwrap();
    let whole_options = BatchOptions { microbatches: 1, batch: 6, ..OPTIONS };
    let whole = MicrobatchBuilder::new(set(4), whole_options).unwrap().build(5, 0, Arc::default()).unwrap();
    let parts: Vec<_> = [2, 0, 1].map(|m| pairs.build(5, m, Arc::default()).unwrap()).into();
    let joined: Vec<f32> = [1, 2, 0].iter().flat_map(|p: &usize| parts[*p].latents.clone()).collect();
    assert_eq!(whole.latents, joined);
}

#[test]
fn unusable_sets_are_refused() {
    let refused =
        |set, options| matches!(MicrobatchBuilder::new(set, options), Err(Error::TrainingSet { .. }));
    assert!(refused(set(0), OPTIONS));
    assert!(refused(set(1), BatchOptions { batch: 0, ..OPTIONS }));
    assert!(refused(set(1), BatchOptions { num_train_timesteps: 0, ..OPTIONS }));
    let mut uneven = set(2);
    in_memory(&mut uneven.concepts[0].images[1].flipped).mean.pop();
    assert!(refused(uneven, OPTIONS));
}
