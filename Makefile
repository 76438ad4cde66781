# The two commands of the README are `make lab` and `make test`; each sets up what it needs.
SHELL := /bin/bash
.DEFAULT_GOAL := help
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# A checkout that anybody may write to would make Ansible ignore its configuration: name it outright.
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
PACKAGES := collections/ansible_collections/sparkmesh runtime/src lab scripts/spark_cli benchmarks tests scripts/wheels
# Python by their first line alone, so no tool finds them in lab/ by itself.
NODE_SCRIPTS := lab/node/fake-rdma lab/node/lab-runc

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## install what is missing for everything below
	scripts/setup control collections lab

lab: ## three emulated Sparks, site.yml on them, one question answered
	scripts/setup control collections lab
	scripts/spark lab

lab-ring: ## the same with four in a ring
	scripts/setup control collections lab
	scripts/spark lab-ring

lab-down: ## stop the lab and leave nothing running
	scripts/setup control
	scripts/spark lab-down

lint: ## ruff, mypy, yamllint, ansible-lint
	scripts/setup control collections
	ruff check $(PACKAGES) $(NODE_SCRIPTS) && ruff format --check $(PACKAGES) $(NODE_SCRIPTS)
	mypy $(PACKAGES)
	yamllint --strict .
	ansible-lint --offline

unit: ## the tests that need no lab
	scripts/setup control collections
	pytest -m "not lab"

test: lint ## lint, then every test, the lab ones included
	scripts/setup lab
	pytest

docs: ## reference pages of modules and filters as text, into docs/reference/
	scripts/setup control collections
	scripts/docs

bench: ## round trips and seconds of a site.yml that changes nothing
	scripts/setup control collections lab
	PYTHONPATH=collections python benchmarks/converge.py site.yml

.PHONY: help setup lab lab-ring lab-down lint unit test docs bench
