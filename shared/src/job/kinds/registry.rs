//! How kinds and sections are registered.

/// Registers the kinds: the word in job files, and the work.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident($spec:ty) = $word:literal,)+) => {
        choice! {
            /// What a job does.
            JobKind {
                $($(#[$doc])* $kind = $word,)+
            }
        }

        /// What a job does, with every default filled in and every value checked.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Work {
            $($(#[$doc])* $kind($spec),)+
        }

        impl JobKind {
            /// See [`Kind::PARTS`].
            fn parts(self) -> &'static [&'static str] {
                match self {
                    $(Self::$kind => <$spec as Kind>::PARTS,)+
                }
            }

            /// See [`Kind::FOREIGN_KEYS`].
            pub(super) fn foreign_keys(self) -> ForeignKeys {
                match self {
                    $(Self::$kind => <$spec as Kind>::FOREIGN_KEYS,)+
                }
            }
        }

        impl Work {
            /// What kind it is.
            pub fn kind(&self) -> JobKind {
                match self {
                    $(Self::$kind(_) => JobKind::$kind,)+
                }
            }

            /// What is asked of it.
            pub(crate) fn facts(&self) -> &dyn Facts {
                match self {
                    $(Self::$kind(work) => work,)+
                }
            }

            /// The same, to be changed.
            pub(super) fn facts_mut(&mut self) -> &mut dyn Facts {
                match self {
                    $(Self::$kind(work) => work,)+
                }
            }

            fn checked(kind: JobKind, draft: JobDraft, check: &mut Check, common: &CommonSpec) -> Self {
                match kind {
                    $(JobKind::$kind => Self::$kind(Kind::checked(draft, check, common)),)+
                }
            }

            /// See [`Kind::fill`].
            pub(super) fn fill(&self, draft: &mut JobDraft) {
                match self {
                    $(Self::$kind(work) => work.fill(draft),)+
                }
            }

            /// See [`Kind::write`].
            pub(super) fn write<M: SerializeMap>(&self, sections: &mut M) -> Result<(), M::Error> {
                match self {
                    $(Self::$kind(work) => work.write(sections),)+
                }
            }

            /// See [`Kind::write_tables`].
            pub(super) fn write_tables<M: SerializeMap>(&self, sections: &mut M) -> Result<(), M::Error> {
                match self {
                    $(Self::$kind(work) => work.write_tables(sections),)+
                }
            }

            /// See [`Kind::read`].
            pub(super) fn read(kind: JobKind, sections: &mut StoredSections) -> Result<Self, serde_json::Error> {
                Ok(match kind {
                    $(JobKind::$kind => Self::$kind(Kind::read(sections)?),)+
                })
            }
        }
    };
}

/// Registers the sections that not all kinds have, each with its parts.
macro_rules! draft {
    ($($section:literal: $($part:ident: $draft:ty),+;)+) => {
        /// A job as it was asked for: everything may be missing, nothing has been checked.
        ///
        /// TOML files and the wire's messages both become one, so that defaults and limits are written
        /// down once, in [`super::JobSpec::from_draft`].
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct JobDraft {
            /// Required.
            pub kind: Option<String>,
            /// See [`CommonSpec::name`].
            pub name: Option<String>,
            /// `[model]`
            pub model: ModelDraft,
            $($(#[doc = concat!("Of `[", $section, "]`.")] pub $part: $draft,)+)+
            /// `[cluster]`
            pub cluster: ClusterDraft,
            /// `[debug]`
            pub debug: DebugDraft,
            /// `[output]`
            pub output: OutputDraft,
            /// `[orders]`
            pub orders: OrdersDraft,
            /// `[[concepts]]`
            pub concepts: Vec<ConceptDraft>,
        }

        impl JobDraft {
            /// Reads the sections that not all kinds have.
            pub(super) fn read_sections(&mut self, reader: &mut Reader<'_>, top: &mut Section<'_>) {
                $(
                    let mut section = reader.section(top, $section);
                    $(self.$part = Keys::read(reader, &mut section);)+
                    reader.refuse_unknown(section);
                )+
            }

            /// The parts that say something.
            fn given(&self) -> Vec<Part> {
                let concepts = if self.concepts.is_empty() { Vec::new() } else { vec!["concepts"] };
                let mut all = vec![
                    $($(Part { section: $section, part: stringify!($part), keys: self.$part.given() },)+)+
                    Part { section: "concepts", part: "concepts", keys: concepts },
                ];
                all.retain(|part| !part.keys.is_empty());
                all
            }
        }

        /// All parts, with all of their keys.
        fn parts() -> Vec<Part> {
            vec![$($(Part { section: $section, part: stringify!($part), keys: <$draft>::keys() },)+)+]
        }
    };
}

/// Registers the work of a kind that has one section, which is all of its work; `check` looks at several of its options
/// together.
macro_rules! one_section {
    ($section:ident: $spec:ty, $foreign_keys:expr) => {
        impl $crate::job::kinds::Kind for $spec {
            const PARTS: &'static [&'static str] = &[stringify!($section)];
            const FOREIGN_KEYS: $crate::job::reader::ForeignKeys = $foreign_keys;

            fn checked(
                draft: $crate::job::JobDraft,
                check: &mut $crate::job::check::Check,
                common: &$crate::job::CommonSpec,
            ) -> Self {
                let work: Self =
                    $crate::job::section::Spec::checked(draft.$section, check, stringify!($section));
                work.check(check, common);
                work
            }

            fn fill(&self, draft: &mut $crate::job::JobDraft) {
                draft.$section = $crate::job::section::Spec::draft(self);
            }

            fn write<M: ::serde::ser::SerializeMap>(&self, sections: &mut M) -> Result<(), M::Error> {
                sections.serialize_entry(stringify!($section), self)
            }

            fn read(sections: &mut $crate::job::kinds::StoredSections) -> Result<Self, ::serde_json::Error> {
                sections.take(stringify!($section))
            }
        }
    };
}
