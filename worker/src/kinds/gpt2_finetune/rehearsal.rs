//! GPT-2 finetuning without a job: what it would read, looked at on this machine alone. Nothing is loaded or computed.

use ringtune_shared::{
    ids::ContentHash,
    job::{
        JobSpec, ModelLocation, PathUse,
        kinds::gpt2_finetune::{Gpt2Init, Gpt2Spec},
    },
};
use ringtune_text::{MANIFEST_FILE, Manifest, TRAIN_FILE, VAL_FILE};

use super::{prepare::source, tokenizer, tokens};
use crate::{
    access::Access,
    base_model,
    engine::Precision,
    kinds::rehearsal::{Alone, alone},
    rank::{Context, Error, Rank},
};

/// What `ringtune prepare-text` leaves.
const TOKEN_FILES: [&str; 3] = [MANIFEST_FILE, TRAIN_FILE, VAL_FILE];

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

/// Brings the job's model here and looks at where its tokens are, and whether one is for the other and for this machine.
///
/// # Errors
/// What would end the job.
pub async fn rehearse_words(
    spec: JobSpec,
    job: Gpt2Spec,
    computes: (Precision, usize),
    context: &Context,
) -> Result<RehearsedWords, Error> {
    let (access, ranks) = (&context.access, spec.common.cluster.world_size);
    let prepare = async |rank: &Rank| {
        // The tokens first: what is missing of them is known at once.
        let manifest = look_at_tokens(&job, access).await?;
        let model = rank.bring_language_model(job.init_from == Gpt2Init::Pretrained).await?;
        if let Some(manifest) = manifest
            && let Some(warning) = tokenizer::compare(&model, &manifest).await?
        {
            rank.journal.warn(warning).await;
        }
        source(&job, &model.folder, (rank.assignment.precision, ranks)).await?;
        Ok(model)
    };
    let Alone { prepared: model, mut warnings, .. } = alone(spec, computes, context, prepare).await?;
    if matches!(job.tokens_location(), Ok(ModelLocation::S3(_))) {
        warnings.push("gpt2.tokens: what is in a bucket is not looked at in a dry run".to_owned());
    }
    Ok(RehearsedWords { model_files: model.files, model_hash: model.hash, warnings })
}

/// That all files of tokens are there, and what they say of themselves. None: they are in a bucket.
async fn look_at_tokens(job: &Gpt2Spec, access: &Access) -> Result<Option<Manifest>, Error> {
    let ModelLocation::Local(folder) = job.tokens_location().map_err(base_model::Error::from)? else {
        return Ok(None);
    };
    let access = access.clone();
    let looking = move || {
        let place = access.place(PathUse::Tokens, tokens::FIELD, &folder.to_string_lossy())?;
        if let Some(name) = TOKEN_FILES.into_iter().find(|name| !place.join(name).is_file()) {
            let shown = place.shown().display();
            let problem = format!("{shown} has no {name}; give a folder that `ringtune prepare-text` made");
            return Err(base_model::Error::Field { field: tokens::FIELD, problem }.into());
        }
        let file = place.join(MANIFEST_FILE);
        let path = file.shown().to_owned();
        let opened = file.open().map_err(|source| ringtune_text::Error::Io { action: "read", path, source });
        opened.and_then(|opened| Manifest::of_file(opened, file.shown())).map_err(tokens::unusable)
    };
    ringtune_shared::tasks::spawn_blocking(looking).await?.map(Some)
}
