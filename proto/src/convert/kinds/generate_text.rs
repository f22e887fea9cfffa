//! `generate_text` of the job spec.

use ringtune_shared::job::kinds::generate_text::{GenerateTextDraft, GenerateTextSpec};

use crate::{convert::fields::signed, v1};

pub(in crate::convert) fn draft_from_wire(wire: v1::GenerateTextSpec) -> GenerateTextDraft {
    GenerateTextDraft {
        prompts: (!wire.prompts.is_empty()).then_some(wire.prompts),
        num_samples: wire.num_samples,
        max_new_tokens: wire.max_new_tokens,
        temperature: wire.temperature,
        top_k: wire.top_k,
        top_p: wire.top_p,
        seed: wire.seed,
        stop_at_end_of_text: wire.stop_at_end_of_text,
        mixed_precision: wire.mixed_precision,
    }
}

pub(in crate::convert) fn to_wire(texts: &GenerateTextSpec) -> v1::GenerateTextSpec {
    v1::GenerateTextSpec {
        prompts: texts.prompts.clone(),
        num_samples: Some(i64::from(texts.num_samples)),
        max_new_tokens: Some(i64::from(texts.max_new_tokens)),
        temperature: Some(texts.temperature),
        top_k: Some(i64::from(texts.top_k)),
        top_p: Some(texts.top_p),
        seed: Some(signed(texts.seed)),
        stop_at_end_of_text: Some(texts.stop_at_end_of_text),
        mixed_precision: Some(texts.mixed_precision.as_str().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::{spec_from_wire, spec_to_wire};

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
}
