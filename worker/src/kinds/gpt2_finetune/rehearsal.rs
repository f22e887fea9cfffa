//! GPT-2 finetuning without a job: what it would read, looked at on this machine alone. Nothing is loaded or computed.

use ringtune_shared::job::{
    JobSpec, ModelLocation, PathUse,
    kinds::gpt2_finetune::{Gpt2Init, Gpt2Spec},
};
use ringtune_text::{MANIFEST_FILE, Manifest, TRAIN_FILE, VAL_FILE};

use super::{prepare::source, tokenizer, tokens};
use crate::{
    access::Access,
    base_model,
    kinds::rehearsal::{Alone, As, Found, LanguageReport, alone},
    rank::{Context, Error, Rank},
};

/// What `ringtune prepare-text` leaves.
const TOKEN_FILES: [&str; 3] = [MANIFEST_FILE, TRAIN_FILE, VAL_FILE];

/// Brings the job's model here and looks at where its tokens are, and whether one is for the other and for this machine.
///
/// # Errors
/// What would end the job.
pub(in crate::kinds) async fn rehearse(
    spec: &JobSpec,
    job: &Gpt2Spec,
    with: As,
    context: &Context,
) -> Result<Found, Error> {
    let (access, cluster) = (&context.access, &spec.common.cluster);
    let prepare = async |rank: &Rank| {
        // The tokens first: what is missing of them is known at once.
        let manifest = look_at_tokens(job, access).await?;
        let model = rank.bring_language_model(job.init_from == Gpt2Init::Pretrained).await?;
        if let Some(manifest) = manifest
            && let Some(warning) = tokenizer::compare(&model, &manifest).await?
        {
            rank.journal.warn(warning).await;
        }
        source(job, &model.folder, rank.assignment.precision, cluster.world_size).await?;
        Ok(model)
    };
    let Alone { prepared: model, mut warnings, .. } = alone(spec, with, context, prepare).await?;
    if matches!(job.tokens_location(), Ok(ModelLocation::S3(_))) {
        warnings.push("gpt2.tokens: what is in a bucket is not looked at in a dry run".to_owned());
    }
    let windows = u64::from(job.global_microbatches(cluster)).saturating_mul(u64::from(job.batch_size));
    let language = LanguageReport {
        base: spec.common.model.base.clone(),
        sha256: model.hash.to_string(),
        files: model.files,
        from_scratch: job.init_from == Gpt2Init::Scratch,
        tokens: job.tokens.clone(),
        steps: job.max_iters,
        windows_per_step: windows,
        tokens_per_step: windows.saturating_mul(u64::from(job.block_size)),
        learning_rate: job.learning_rate,
    };
    Ok(Found { warnings, language: Some(language), ..Found::default() })
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
