//! A language model that makes text, of a few lines: which token comes next depends on all that come before, and on their
//! places.

use ringtune_engine::{
    EngineError, FeedTokens, LanguageModelInfo, LanguageModelSource, OpenTextModel, TextModelInfo,
};
use ringtune_random::philox4x32;

use crate::language_model::FakeLanguageModel;

/// What a folder's model has: GPT-2's own numbers, so that real tokenizers fit.
const FOLDER: TextModelInfo = TextModelInfo { vocab_size: 50_257, n_positions: 1024 };

/// What is open, and the text that was fed.
#[derive(Debug)]
pub(crate) struct FakeTextModel {
    info: TextModelInfo,
    seed: u64,
    text: Vec<i64>,
}

impl FakeTextModel {
    pub(crate) fn open(request: &OpenTextModel) -> Self {
        let (info, seed) = match &request.source {
            LanguageModelSource::Folder(_) => (FOLDER, 0),
            LanguageModelSource::New(new) => {
                (TextModelInfo { vocab_size: new.vocab_size, n_positions: new.n_positions }, new.seed)
            }
        };
        Self { info, seed, text: Vec::new() }
    }

    /// Which token comes next depends on what was learned, too.
    pub(crate) fn of_trained(model: &FakeLanguageModel) -> Self {
        let LanguageModelInfo { vocab_size, n_positions, .. } = model.info();
        let learned = model.held.parameter(1).iter().map(|value| u64::from(value.to_bits()));
        let seed = learned.fold(0, |seed: u64, bits| seed.rotate_left(7) ^ bits);
        Self { info: TextModelInfo { vocab_size, n_positions }, seed, text: Vec::new() }
    }

    pub(crate) fn info(&self) -> TextModelInfo {
        self.info
    }

    pub(crate) fn next(&mut self, feed: &FeedTokens) -> Result<Vec<f32>, EngineError> {
        let TextModelInfo { vocab_size, n_positions } = self.info;
        let wrong = |text: String| Err(EngineError::OfJob(text.into()));
        if feed.keep > self.text.len() {
            return wrong(format!("keep is {}, allowed is up to {}", feed.keep, self.text.len()));
        }
        let length = feed.keep.saturating_add(feed.tokens.len());
        if feed.tokens.is_empty() || length > n_positions {
            return wrong(format!(
                "tokens are {} behind {}, allowed is 1 to {n_positions} in all",
                feed.tokens.len(),
                feed.keep
            ));
        }
        if let Some(id) = feed.tokens.iter().find(|id| !(0..vocab_size as i64).contains(id)) {
            return wrong(format!("tokens has id {id}, allowed is 0 to {}", vocab_size - 1));
        }
        self.text.truncate(feed.keep);
        self.text.extend(&feed.tokens);
        let mut key = [self.seed as u32, (self.seed >> 32) as u32];
        for token in &self.text {
            let words = philox4x32(key, [*token as u32, 1, 0, 0]);
            key = [words[0], words[1]];
        }
        let logit = |id: usize| philox4x32(key, [id as u32, 2, 0, 0])[0] as f32 / u32::MAX as f32 * 8.0;
        Ok((0..vocab_size).map(logit).collect())
    }
}
