//! GPT-2 finetuning without a job: what it would read, looked at on this machine alone. Nothing is loaded or computed.

use ringtune_shared::{
    ids::ContentHash,
    job::{
        JobSpec, ModelLocation, PathUse,
        kinds::gpt2_finetune::{Gpt2Init, Gpt2Spec},
    },
};

use crate::{
    base_model,
    engine::Precision,
    kinds::rehearsal::{Alone, alone},
    rank::{Context, Error},
};

/// What `ringtune prepare-text` leaves.
const TOKEN_FILES: [&str; 3] = ["meta.json", "train.bin", "val.bin"];

/// What was looked at.
#[derive(Clone, Debug)]
pub struct RehearsedWords {
    /// The files of the model that are used.
    pub model_files: Vec<String>,
    /// They, by content.
    pub model_hash: ContentHash,
    /// What preparation warned of.
    pub warnings: Vec<String>,
}

/// Brings the job's model here and looks at where its tokens are.
///
/// # Errors
/// What would end the job.
pub async fn rehearse_words(
    spec: JobSpec,
    job: Gpt2Spec,
    computes: (Precision, usize),
    context: &Context,
) -> Result<RehearsedWords, Error> {
    let (asked, access) = (job.clone(), context.access.clone());
    let Alone { prepared: model, mut warnings, .. } = alone(spec, computes, context, async |rank| {
        let ModelLocation::Local(folder) = asked.tokens_location().map_err(base_model::Error::from)? else {
            return Ok(rank.bring_language_model(asked.init_from == Gpt2Init::Pretrained).await?);
        };
        // The tokens first: what is missing of them is known at once.
        let looking = move || {
            const FIELD: &str = "gpt2.tokens";
            let place = access.place(PathUse::Tokens, FIELD, &folder.to_string_lossy())?;
            let missing = TOKEN_FILES.into_iter().find(|name| !place.join(name).is_file());
            match missing {
                None => Ok(()),
                Some(name) => Err(base_model::Error::Field {
                    field: FIELD,
                    problem: format!(
                        "{} has no {name}; give a folder that `ringtune prepare-text` made",
                        place.shown().display()
                    ),
                }),
            }
        };
        ringtune_shared::tasks::spawn_blocking(looking).await??;
        Ok(rank.bring_language_model(asked.init_from == Gpt2Init::Pretrained).await?)
    })
    .await?;
    if matches!(job.tokens_location(), Ok(ModelLocation::S3(_))) {
        warnings.push("gpt2.tokens: what is in a bucket is not looked at in a dry run".to_owned());
    }
    Ok(RehearsedWords { model_files: model.files, model_hash: model.hash, warnings })
}
