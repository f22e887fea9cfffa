//! Sections of the job spec. An option has the same name in its message and in its draft, and its key comes from where it is
//! declared. An empty text or list and an absent number on the wire all mean "not given".

use std::{collections::BTreeMap, mem::take};

use ringtune_shared::job::{
    ClusterDraft, DebugDraft, ModelDraft, OrdersDraft, OutputDraft,
    kinds::{
        generate::{DrawnLoraDraft, GenerateDraft},
        generate_text::GenerateTextDraft,
        gpt2_finetune::Gpt2Draft,
        lora::{AdapterDraft, TextEncoderDraft},
        unet_finetune::UnetDraft,
    },
    pictures::{
        DataDraft, DenoiserDraft, FolderDraft, PreviewDraft, PromptDraft, TrainDraft, ValidationDraft,
        concepts::{ConceptDraft, WordDraft},
    },
};

use crate::v1;

/// The draft of a section, or of a part of one, and its message.
pub(super) trait Part<Message> {
    /// Takes its options out of a message.
    fn taken(message: &mut Message) -> Self;

    /// Puts its options into a message.
    fn put(self, message: &mut Message);
}

impl<Message, P: Part<Message>> Part<Box<Message>> for P {
    fn taken(message: &mut Box<Message>) -> Self {
        P::taken(message.as_mut())
    }

    fn put(self, message: &mut Box<Message>) {
        P::put(self, message.as_mut());
    }
}

/// A field of a message, and what a draft has.
trait Field<Given> {
    fn given(self) -> Given;

    fn sent(given: Given) -> Self;
}

impl<T> Field<Option<T>> for Option<T> {
    fn given(self) -> Self {
        self
    }

    fn sent(given: Self) -> Self {
        given
    }
}

/// An empty text is not given.
pub(super) fn given(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

impl Field<Option<Self>> for String {
    fn given(self) -> Option<Self> {
        given(self)
    }

    fn sent(given: Option<Self>) -> Self {
        given.unwrap_or_default()
    }
}

impl Field<Option<Self>> for Vec<String> {
    fn given(self) -> Option<Self> {
        (!self.is_empty()).then_some(self)
    }

    fn sent(given: Option<Self>) -> Self {
        given.unwrap_or_default()
    }
}

impl Field<Option<Self>> for BTreeMap<String, f64> {
    fn given(self) -> Option<Self> {
        (!self.is_empty()).then_some(self)
    }

    fn sent(given: Option<Self>) -> Self {
        given.unwrap_or_default()
    }
}

impl<Message: Default, P: Part<Message>> Field<Option<Vec<P>>> for Vec<Message> {
    fn given(self) -> Option<Vec<P>> {
        (!self.is_empty()).then(|| list_from_wire(self))
    }

    fn sent(given: Option<Vec<P>>) -> Self {
        list_to_wire(given.unwrap_or_default())
    }
}

pub(super) fn list_from_wire<Message, P: Part<Message>>(messages: Vec<Message>) -> Vec<P> {
    messages.into_iter().map(|mut message| P::taken(&mut message)).collect()
}

pub(super) fn list_to_wire<Message: Default, P: Part<Message>>(parts: Vec<P>) -> Vec<Message> {
    let message = |part: P| {
        let mut message = Message::default();
        part.put(&mut message);
        message
    };
    parts.into_iter().map(message).collect()
}

/// With the keys of a draft and how each is read, as the declaration of its section gives them.
macro_rules! part {
    ($message:ident, $draft:ident; $($key:ident $read:ident),+) => {
        impl Part<v1::$message> for $draft {
            fn taken(message: &mut v1::$message) -> Self {
                Self { $($key: part!(@taken message $key $read),)+ }
            }

            fn put(self, message: &mut v1::$message) {
                $(part!(@put (self.$key) message $key $read);)+
            }
        }
    };
    (@taken $message:ident $key:ident part) => { Part::taken($message) };
    (@taken $message:ident $key:ident $read:ident) => { Field::given(take(&mut $message.$key)) };
    (@put ($given:expr) $message:ident $key:ident part) => { Part::put($given, $message) };
    (@put ($given:expr) $message:ident $key:ident $read:ident) => { $message.$key = Field::sent($given) };
}

ringtune_shared::model_keys!(part(ModelSpec, ModelDraft));
ringtune_shared::data_keys!(part(DataSpec, DataDraft));
ringtune_shared::prompt_keys!(part(DataSpec, PromptDraft));
ringtune_shared::lora_keys!(part(LoraSpec, AdapterDraft));
ringtune_shared::folder_keys!(part(FolderSpec, FolderDraft));
ringtune_shared::word_keys!(part(TrainSpec, WordDraft));
ringtune_shared::denoiser_keys!(part(TrainSpec, DenoiserDraft));
ringtune_shared::text_encoder_keys!(part(TrainSpec, TextEncoderDraft));
ringtune_shared::unet_keys!(part(TrainSpec, UnetDraft));
ringtune_shared::train_keys!(part(TrainSpec, TrainDraft));
ringtune_shared::validation_keys!(part(TrainSpec, ValidationDraft));
ringtune_shared::preview_keys!(part(TrainSpec, PreviewDraft));
ringtune_shared::drawn_lora_keys!(part(DrawnLora, DrawnLoraDraft));
ringtune_shared::generate_keys!(part(GenerateSpec, GenerateDraft));
ringtune_shared::gpt2_keys!(part(Gpt2FinetuneSpec, Gpt2Draft));
ringtune_shared::generate_text_keys!(part(GenerateTextSpec, GenerateTextDraft));
ringtune_shared::cluster_keys!(part(ClusterSpec, ClusterDraft));
ringtune_shared::debug_keys!(part(DebugSpec, DebugDraft));
ringtune_shared::output_keys!(part(OutputSpec, OutputDraft));
ringtune_shared::orders_keys!(part(OrdersSpec, OrdersDraft));
ringtune_shared::concept_keys!(part(ConceptSpec, ConceptDraft));
