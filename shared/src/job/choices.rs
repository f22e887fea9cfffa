//! The options that are one of a few words: diffusers' own. Kinds of work have more of them.

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            /// All values, in the order in which they are listed to users.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The value as it is written in job files and on the wire.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            /// All values as they are written, separated by commas.
            pub fn allowed() -> String {
                Self::ALL.iter().map(|value| value.as_str()).collect::<Vec<_>>().join(", ")
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::job::NotAChoice;

            fn from_str(text: &str) -> Result<Self, $crate::job::NotAChoice> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text).ok_or_else(|| $crate::job::NotAChoice {
                    given: text.chars().take(100).collect(),
                    allowed: Self::allowed(),
                })
            }
        }

        impl $crate::job::section::Value<Option<String>> for $name {
            fn draft(&self) -> Option<String> {
                Some(self.as_str().to_owned())
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <String as ::serde::Deserialize>::deserialize(deserializer)?.parse().map_err(::serde::de::Error::custom)
            }
        }
    };
}

/// A word that is not one of the choices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("got {given:?}; allowed: {allowed}")]
pub struct NotAChoice {
    /// What was given, cut to 100 characters.
    pub given: String,
    /// The choices, separated by commas.
    pub allowed: String,
}

choice! {
    /// What a model's UNet predicts, by the names of diffusers' schedulers.
    PredictionType {
        /// The noise: Stable Diffusion 1.x, and 2.x base.
        Epsilon = "epsilon",
        /// The velocity of Salimans & Ho 2022: Stable Diffusion 2.x at 768 pixels.
        VPrediction = "v_prediction",
    }
}

choice! {
    /// What the ranks compute in.
    MixedPrecision {
        /// Everything in fp32.
        No = "no",
        /// The UNet, or a language model's products and attention, in bf16.
        Bf16 = "bf16",
    }
}

pub(super) use choice;

choice! {
    /// The schedule of the learning rate; diffusers' six.
    LrScheduler {
        /// The same all the time.
        Constant = "constant",
        /// Up over the warm-up, then down to 0 in a straight line.
        Linear = "linear",
        /// Up over the warm-up, then down to 0 along half a cosine.
        Cosine = "cosine",
        /// As cosine, with hard restarts: `lr_num_cycles` times.
        CosineWithRestarts = "cosine_with_restarts",
        /// Up over the warm-up, then down to 1e-7 along a polynomial.
        Polynomial = "polynomial",
        /// Up over the warm-up, then the same all the time.
        ConstantWithWarmup = "constant_with_warmup",
    }
}

choice! {
    /// Who gets a file of events besides metrics.csv. diffusers' and nanoGPT's other trackers are services to log in to.
    ReportTo {
        /// TensorBoard.
        Tensorboard = "tensorboard",
        /// Nobody.
        Nothing = "none",
    }
}
