//! The engine's methods on its handle: [`EngineHandle::run`] with one call in it.

use crate::{
    EngineError, EngineHandle, EngineIdentity, Gradient, ImageRequest, LoadModel, Microbatch, ModelInfo,
    Moments, Pixels, RgbImage,
};

/// What every engine does.
impl EngineHandle {
    /// See [`crate::Engine::identity`].
    pub async fn identity(&self) -> Result<EngineIdentity, EngineError> {
        self.run(|engine, _| engine.identity()).await
    }

    /// See [`crate::Engine::load`].
    pub async fn load(&self, request: LoadModel) -> Result<ModelInfo, EngineError> {
        self.run(move |engine, _| engine.load(&request)).await
    }
}

/// Encoding pictures.
impl EngineHandle {
    /// See [`crate::EncodeImages::encode_image`].
    pub async fn encode_image(&self, pixels: Pixels) -> Result<Moments, EngineError> {
        self.run(move |engine, _| engine.encode_image(&pixels)).await
    }

    /// See [`crate::EncodeImages::drop_vae`]. Done even when nobody waits for it any more: what it lets go of is of no
    /// use to whoever comes next.
    pub async fn drop_vae(&self) -> Result<(), EngineError> {
        self.run_anyway(|engine| {
            engine.drop_vae();
            Ok(())
        })
        .await
    }
}

/// Textual inversion.
impl EngineHandle {
    /// See [`crate::TextualInversion::token_row`].
    pub async fn token_row(&self, id: i64) -> Result<Vec<f32>, EngineError> {
        self.run(move |engine, _| engine.token_row(id)).await
    }

    /// See [`crate::TextualInversion::gradient`].
    pub async fn gradient(&self, microbatch: Microbatch) -> Result<Gradient, EngineError> {
        self.run(move |engine, _| engine.gradient(&microbatch)).await
    }

    /// See [`crate::TextualInversion::loss`].
    pub async fn loss(&self, microbatch: Microbatch) -> Result<f32, EngineError> {
        self.run(move |engine, _| engine.loss(&microbatch)).await
    }
}

/// Drawing pictures.
impl EngineHandle {
    /// See [`crate::DrawPictures::generate`].
    pub async fn generate(&self, request: ImageRequest) -> Result<Vec<RgbImage>, EngineError> {
        self.run(move |engine, wanted| engine.generate(&request, wanted)).await
    }
}
