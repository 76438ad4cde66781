"""A module for these tests: reports the actions or the failing findings it is told to."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule(
        argument_spec={"actions": {"type": "list", "elements": "str"}, "fix": {"type": "str"}}, supports_check_mode=True
    )
    if module.params["fix"]:
        finding = {"id": "fabric.mtu", "node": "one", "status": "fail", "title": "MTU", "fix": module.params["fix"]}
        module.fail_json(msg="1 of 1 checks failed", findings=[finding])
    module.exit_json(changed=bool(module.params["actions"]), actions=module.params["actions"] or [])


if __name__ == "__main__":
    main()
