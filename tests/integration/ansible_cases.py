"""Inventories and host patterns that are read by us and by ansible-core, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# name → {file: text}; the inventory is inventory.yaml, or the first file of the case
CORPUS: dict[str, dict[str, str]] = {
    "one host": {"inventory.yaml": "all: {hosts: {gpu01: }}"},
    "hosts as one string": {"inventory.yaml": "all: {hosts: gpu01}\ngpu: {children: deep}\n"},
    "ungrouped and grouped": {
        "inventory.yaml": """
            all:
              hosts: {lone: {a: 1}, both: {}}
              children:
                gpu: {hosts: {both: {b: 2}, gpu01: }}
            extra: {hosts: {gpu02: }}
            ungrouped: {hosts: {gpu02: , explicit: }}
            """
    },
    "ranges": {
        "inventory.yaml": """
            all:
              hosts:
                gpu[01:03]: {pad: true}
                n[8:11]:
                s[0:9:3]-ib:
                a[a:e:2]:
                "[x:z]front":
                r[1:2]-n[01:02]: {two: ranges}
                z[:2]:
                p[1:2]:2222: {ported: true}
                c[a:b].example.org:22:
                "[::1]:2200":
                "fe80::[1:2]":
                "10.0.0.[1:3]":
            """
    },
    "a port counts where a host is first named": {
        "inventory.yaml": """
            a: {hosts: {'h1:22': , h2: }}
            b: {hosts: {'h1:33': , 'h2:44': , 'h3:55': {ansible_port: 66}}}
            """
    },
    "depth, priority, names": {
        "inventory.yaml": """
            all:
              vars: {who: all, all_only: 1, mapping: {from: all}}
              children:
                zeta: {vars: {who: zeta, tie: zeta}, hosts: {h: }}
                alpha: {vars: {who: alpha, tie: alpha}, hosts: {h: }}
                strong: {vars: {ansible_group_priority: 10, tie: strong, mapping: {from: strong}}, hosts: {h: , i: }}
                top: {vars: {deep: top, who: top}, children: {mid: {vars: {deep: mid}, children: {low: }}}}
            low: {vars: {deep: low, ansible_group_priority: "-5"}, hosts: {h: {own: 1, who: h}, j: }}
            """
    },
    "one group under two parents": {
        "inventory.yaml": """
            site: {children: {east: {vars: {v: east}}, rack: {vars: {v: rack}}}}
            east: {children: {rack: {hosts: {h1: }}}, vars: {w: east}}
            west: {children: {rack: }, vars: {w: west, ansible_group_priority: 3}}
            """
    },
    "vars files": {
        "inventory.yaml": """
            all: {vars: {a: inline, e: inline}}
            gpu: {vars: {a: gpu inline}, hosts: {h1: {b: own}, h2: }}
            """,
        "group_vars/all": "a: file all\nb: file all\nc: file all\n",
        "group_vars/gpu.yml": "b: file gpu\nansible_group_priority: 7\n",
        "group_vars/gpu.json": '{"b": "passed over"}',
        "group_vars/absent.yml": "b: nobody\n",
        "host_vars/h1.json": '{"d": 1e5, "f": [1, null, true], "t": "tab\\there", "\\u00e9": "\\ud83d\\ude00"}',
        "host_vars/h2": "b: h2\nclusterddp_nproc: 2\n",
        "host_vars/.hidden": "x: 1\n",
    },
    "vars folders": {
        "inventory.yaml": "gpu: {hosts: {h1: }}\nweb: {hosts: {h1: }}",
        "group_vars/gpu/10.yml": "a: 10\nb: 10\n",
        "group_vars/gpu/20.yaml": "a: 20\n",
        "group_vars/gpu/15": "a: 15\nc: 15\n",
        "group_vars/gpu/deep/x.yml": "a: deep\nd: deep\n",
        "group_vars/gpu/deep.d/x.yml": "a: not read\n",
        "group_vars/gpu/30.txt": "a: not read\n",
        "group_vars/gpu/.40.yml": "a: not read\n",
        "group_vars/gpu/50.yml~": "a: not read\n",
        "group_vars/gpu/60.yml": "",
        "group_vars/web.yaml/main.yml": "e: web\nb: web\n",
        "host_vars/h1/main.yml": "h: 1\n",
    },
    "values": {
        "inventory.yaml": """
            all:
              vars:
                day: 2024-01-02
                moment: 2024-01-02 03:04:05
                sexagesimal: 1:30:00
                octal: 0o17
                old_octal: 017
                float: 1.5
                huge: 1e5
                empty:
                yes: 1
                3: three
                nested: {1: a, true: b, deep: [1, {x: !unsafe "{{ y }}"}]}
                set: !!set {b, a}
                template: "{{ foo }} {% if x %}"
                unsafe: !unsafe "{{ bar }}"
                unsafe_number: !unsafe 5
                hidden: !vault |
                  $ANSIBLE_VAULT;1.1;AES256
                  6162
                text: |
                  two
                  lines
                groups: mine
                ansible_version: mine
              hosts:
                h1: &h1 {a: 1, b: 2}
                h2: {<<: *h1, b: 3}
                h3: *h1
                h4: {ansible_group_priority: 4, inventory_dir: mine}
            """
    },
    "duplicates elsewhere": {"inventory.yaml": "all: {hosts: {h1: {a: 1, a: 2, m: {x: 1, x: 2}}}}"},
    "unknown sections": {"inventory.yaml": "all: {hosts: {h1: }, typo: {h2: }, children: {g: {vars: , host: [1]}}}"},
    "a group and a host of one name": {
        "inventory.yaml": "gpu01: {hosts: {gpu01: {a: 1}, gpu02: {b: 1}}, vars: {a: 2, c: 3}}"
    },
    "json": {"inventory.json": '{\n\t"all": {"hosts": {"h1": {"a": 1e3, "b": "<<"}, "h2": null}}}'},
    "no extension": {"hosts": "all: {hosts: {h1: }}\n"},
    "hosts of ungrouped beside all": {
        "inventory.yaml": """
            g2: {hosts: {c: }}
            all: {hosts: {b: , a: }, children: {g1: {hosts: {d: , b: }}}}
            ungrouped: {hosts: {e: }}
            """
    },
}
BY_COMMAND = ("ranges", "depth, priority, names", "vars files", "vars folders", "values")  # a second each
PATTERN_INVENTORY = """
all:
  hosts: {lone: }
  children:
    gpu: {hosts: {"gpu[01:06]": }}
    web: {hosts: {"web[a:c]": , gpu02: , gpu05: }}
    web_eu: {hosts: {webb: , web.eu: }}
    empty: {}
    "5": {hosts: {n5: }}
"""
PATTERNS = (
    *("all", "*", "gpu", "web", "empty", "ungrouped", "lone", "nothing", "gpu01", "5", "all:!gpu03", "!gpu", "&web"),
    *("gpu:web", "gpu,web", "web:gpu", "gpu:&web", "&web:gpu", "!gpu02:gpu:&web", "gpu:!web:lone", "gpu, lone ,"),
    *("gpu0[1-3]", "gpu*", "web*", "web?", "*b", "w*:!web_eu", "gpu0?", "~gpu0[24]", "~web", "~.*b$", "~(gpu|lone)"),
    *("gpu[0]", "gpu[-1]", "gpu[0:2]", "gpu[2:]", "gpu[1:0]", "gpu[3:1]", "gpu[5:9]", "gpu[-7]", "gpu[9]", "gpu[4-5]"),
    *(
        "web*[0:2]",
        "web*[1]",
        "all[0]",
        "all[-1]",
        "*[1:3]",
        "gpu[0:1]:web[0]",
        "gpu:!gpu[0]",
        "gpu:&gpu[0:2]",
        "empty[0]",
    ),
    *(
        "gpu[0],web[-1]",
        "web.eu",
        "web.*",
        "~web\\.",
        "gpu01:gpu02:gpu03",
        "gpu01,gpu99",
        "!gpu99",
        "gpu 5",
        "a:5",
        "lone:22",
    ),
    *(
        "gpu[1:3]",
        "::1",
        "gpu[x]",
        "~(",
        "",
        ",",
        "!",
        "all:!all",
        "localhost",
        "gpu[0:0]",
        "lone[0:]",
        "lone[1:]",
    ),
)


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write a case; returns its inventory, the first file."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_dedented(text))
    return folder / next(iter(files))


def _dedented(text: str) -> str:
    lines = text.strip("\n").splitlines()
    indent = min((len(line) - len(line.lstrip(" ")) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:] for line in lines) + "\n"
