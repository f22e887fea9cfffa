//! Ringtune: model.
