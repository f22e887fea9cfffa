# A thin front for people; the work is in cargo and in the scripts named here.
CARGO ?= cargo
# nextest runs each test in a process of its own and knows the groups of .config/nextest.toml.
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes)

.DEFAULT_GOAL := help
.PHONY: help setup build demo test nightly lint sanitize bench bench-lora bench-unet bench-draw bench-first bench-gpt2 bench-ring bench-overlap bench-control chaos pairs upgrade-test same-bytes release-proto packages packages-test clouds-test image-recipe images images-test manifests

help: ## Show this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

setup: ## Check the tools that are needed and put libtorch in the cache (once, about 550 MB)
	@deploy/setup.sh

build: setup ## Build ringtune, ringtune-coordinator and ringtune-worker into target/release
	@deploy/stage.sh build $(CARGO) build --release

demo: build ## Teach a small checkpoint the concept "green star" with two workers, and draw what it learned
	@deploy/demo.sh

# Always the whole workspace, and a filter: with -p, other features would be chosen, and libtorch's bindings, serde and
# tokio compiled a second time.
test: build ## Run the tests: quick ones first, then the end-to-end ones with real processes
	@deploy/stage.sh reference tests/reference/ensure.sh >/dev/null
ifeq ($(NEXTEST),yes)
	@deploy/stage.sh "build of the tests" $(CARGO) nextest run --release --workspace --no-run
	@deploy/stage.sh "tests of the crates" $(CARGO) nextest run --release --workspace --profile crates -E 'not package(ringtune-tests)'
	@deploy/stage.sh "end-to-end tests" $(CARGO) nextest run --release --workspace --profile end-to-end -E 'package(ringtune-tests)'
else
	@echo "note: cargo-nextest is not installed, using cargo test (cargo install --locked cargo-nextest)" >&2
	@deploy/stage.sh "build of the tests" $(CARGO) test --release --workspace --lib --bins --tests --no-run
	@deploy/stage.sh "tests" $(CARGO) test --release --workspace --lib --bins --tests -- --test-threads=1
endif
	@deploy/stage.sh sanitizers worker/model/sanitize/run.sh

# What make test leaves out (.config/nextest.toml says why), more random schedules and broken inputs, the one example that is
# a documentation test, and the model in memory that is never zero by chance.
nightly: build ## Run all tests, with cargo-nextest: also what takes long and finds little (two hours on two cores)
	@tests/reference/ensure.sh >/dev/null
	@RINGTUNE_SCHEDULES=40000 RINGTUNE_SIMULATIONS=3000 RINGTUNE_FUZZ_SECONDS=10 \
		deploy/stage.sh "all tests" $(CARGO) nextest run --release --workspace --profile nightly
	@PROPTEST_CASES=100000 deploy/stage.sh "100,000 clusters" $(CARGO) nextest run --release -p ringtune-coordinator \
		-E 'test(indexes_decide_as_a_look_at_everything_does)'
	@deploy/stage.sh "documentation tests" $(CARGO) test --release --workspace --doc
	@deploy/stage.sh sanitizers worker/model/sanitize/run.sh
	@deploy/stage.sh "filled memory" worker/model/sanitize/filled.sh

sanitize: ## Run our native kernels under the address and undefined-behaviour sanitizers (seconds; part of make test)
	@worker/model/sanitize/run.sh

CLIPPY ?= clippy --release --workspace --all-targets -- -D warnings
lint: setup ## Check format, lints, the API (with npm), licences and advisories (with cargo-deny)
	@deploy/stage.sh format $(CARGO) fmt --all --check
	@deploy/stage.sh clippy $(CARGO) $(CLIPPY)
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check; \
	else echo "note: cargo-deny is not installed, deny.toml was not checked" >&2; fi
	@deploy/stage.sh API deploy/check-api.sh

release-proto: ## Make the API as it is now the released one, which later ones are compared with
	@deploy/check-api.sh release

bench: build ## Time our training step beside the one it replaces, in turns
	@tests/bench/bench.sh $(ARGUMENTS)

bench-lora: build ## Time a LoRA's step beside that of diffusers' script, in turns: rank 4, or with ARGUMENTS="--lora 64" another
	@tests/bench/bench.sh --lora 4 $(ARGUMENTS)

bench-unet: build ## Time a step of the whole UNet beside that of diffusers' script, in turns
	@tests/bench/bench.sh --unet --steps 2 $(ARGUMENTS)

bench-draw: build ## Time drawing a picture beside diffusers' pipeline, in turns
	@tests/bench/draw.sh $(ARGUMENTS)

bench-first: build ## Time a job from its submission to the end of its first step
	@tests/bench/first.sh $(ARGUMENTS)

bench-gpt2: setup ## Time a step of GPT-2 124M beside PyTorch's, with and without torch.compile, in turns
	@tests/bench/gpt2.sh $(ARGUMENTS)

bench-ring: setup ## Time all-reduces of the ring beside Gloo, in turns
	@tests/bench/ring.sh $(ARGUMENTS)

bench-overlap: setup ## Time how much of a GPT-2's exchange its backward pass hides, and what exact sums cost, in turns
	@tests/bench/overlap.sh $(ARGUMENTS)

bench-control: ## Load a coordinator with 1,000 fake workers and 10,000 jobs, kill it, and check its bounds
	@$(CARGO) build --release
	@$(CARGO) bench --workspace --bench control -- $(ARGUMENTS)

ROUNDS ?= 1
JOBS ?= 1
ROWS ?=
TLS ?=
CONNECTIONS ?=
# TLS=1: all daemons speak TLS. CONNECTIONS=3: ring neighbours are joined by three connections, none of which is local.
# KILLS, CALM, MINUTES and RANKS are measurements instead of the matrix.
chaos: ## Play rounds of the fault matrix (ROUNDS=20, JOBS=3, ROWS='some names', TLS=1, CONNECTIONS=3; or KILLS=200, CALM=30, MINUTES=30, RANKS=64)
	@$(CARGO) build --release
	@RINGTUNE_CHAOS_TLS=$(TLS) RINGTUNE_CHAOS_CONNECTIONS=$(CONNECTIONS) $(CARGO) bench --workspace --bench chaos -- --jobs $(JOBS) $(if $(KILLS)$(CALM)$(MINUTES)$(RANKS),\
		$(if $(KILLS),--kills $(KILLS)) $(if $(CALM),--calm $(CALM)) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(RANKS),--ranks $(RANKS)),--rounds $(ROUNDS) $(ROWS))

pairs: build ## Learn all four pairs of the toy checkpoint, of which make nightly learns one, and count what is drawn right
	@RINGTUNE_REQUIRE_TOOLS=1 $(CARGO) test --release --workspace --test four_pairs -- --include-ignored --test-threads=1

upgrade-test: build ## Run the last release's programs, which it builds once, beside this build's
	@folder="$$(tests/upgrade/release.sh)" && RINGTUNE_RELEASED="$$folder" \
		$(CARGO) test --release --workspace --test rolling_upgrade -- --ignored --test-threads=1

same-bytes: build ## Compare every byte that eleven jobs leave with those of an earlier commit's build, which it builds once (SINCE=COMMIT, LIMIT=avx2 for what lesser processors do)
	@tests/upgrade/same_bytes.sh $(SINCE) $(LIMIT)

packages: build ## Make Debian packages and a tarball in target/packages
	@deploy/packages/build.sh

packages-test: packages ## Install the packages on clean Debian systems and run clusters of them (root, debootstrap)
	@RINGTUNE_REQUIRE_TOOLS=1 $(CARGO) test --release --workspace --test packages -- --ignored --test-threads=1 --skip clouds::

clouds-test: packages ## Run what machines of AWS and Azure run when they start, on clean Debian systems, until a worker has joined (root, debootstrap)
	@RINGTUNE_REQUIRE_TOOLS=1 $(CARGO) test --release --workspace --test packages -- --ignored --test-threads=1 clouds::

image-recipe: packages ## Write target/image, with which packer bakes an image for EC2 whose machines start in seconds (packer build)
	@rm -rf target/image && mkdir -p target/image/packages
	@cp target/packages/*.deb target/image/packages
	@cp deploy/aws/image.pkr.hcl deploy/aws/install.sh target/image
	@echo "packer init target/image && packer build -var region=REGION target/image, and then ringtune cloud aws up --image AMI"

images: packages ## Make container images of the packages, and OCI layouts in target/images (buildah, skopeo)
	@deploy/containers/build.sh

images-test: images ## Run a cluster of the images, read-only and without rights, and kill a worker (root, podman)
	@RINGTUNE_REQUIRE_TOOLS=1 $(CARGO) test --release --workspace --test images -- --ignored --test-threads=1

manifests: ## Make the plain manifests of deploy/kubernetes from the Helm chart (helm)
	@deploy/kubernetes/build.sh
