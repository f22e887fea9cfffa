//! `generate` of the job spec.

use ringtune_shared::job::kinds::generate::{GenerateDraft, GenerateSpec};

use crate::{
    convert::fields::{given, signed},
    v1,
};

pub(in crate::convert) fn draft_from_wire(wire: v1::GenerateSpec) -> GenerateDraft {
    let list = |list: Vec<String>| (!list.is_empty()).then_some(list);
    GenerateDraft {
        prompts: list(wire.prompts),
        negative_prompt: given(wire.negative_prompt),
        embeddings: list(wire.embeddings),
        tokens: list(wire.tokens),
        count: wire.count,
        steps: wire.steps,
        guidance_scale: wire.guidance_scale,
        width: wire.width,
        height: wire.height,
        seed: wire.seed,
        scheduler: given(wire.scheduler),
        batch: wire.batch,
        sheet: wire.sheet,
        mixed_precision: wire.mixed_precision,
    }
}

pub(in crate::convert) fn to_wire(generate: &GenerateSpec) -> v1::GenerateSpec {
    v1::GenerateSpec {
        prompts: generate.prompts.clone(),
        negative_prompt: generate.negative_prompt.clone(),
        embeddings: generate.embeddings.clone(),
        tokens: generate.tokens.clone(),
        count: Some(i64::from(generate.count)),
        steps: Some(i64::from(generate.steps)),
        guidance_scale: Some(generate.guidance_scale),
        width: Some(i64::from(generate.width)),
        height: Some(i64::from(generate.height)),
        seed: Some(signed(generate.seed)),
        scheduler: generate.scheduler.clone(),
        batch: Some(i64::from(generate.batch)),
        sheet: Some(generate.sheet),
        mixed_precision: Some(generate.mixed_precision.as_str().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::{spec_from_wire, spec_to_wire};

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
            }),
            ..Default::default()
        };
        let spec = spec_from_wire(sent.clone()).unwrap();
        let wire = spec_to_wire(&spec);
        assert_eq!(wire.generate, sent.generate);
        assert_eq!(spec_from_wire(wire).unwrap(), spec);
    }
}
