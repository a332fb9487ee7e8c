"""Conversations for chat templates: system, tools, results, thinking, several turns, odd characters."""

import random


def u(text):
    return {"role": "user", "content": text}


def a(text, **more):
    return {"role": "assistant", "content": text, **more}


def s(text):
    return {"role": "system", "content": text}


def call(name, arguments, ident="call00001"):
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text, name="tide", ident="call00001"):
    return {"role": "tool", "name": name, "tool_call_id": ident, "content": text}


TOOLS = [
    {"type": "function", "function": {"name": "tide", "description": "When the tide is high, and how \"high\".",
     "parameters": {"type": "object", "properties": {"place": {"type": "string", "description": "a port, as Saint-Malo é"},
      "days": {"type": "integer", "enum": [1, 2, 3]}}, "required": ["place"]}}},
    {"type": "function", "function": {"name": "mill_speed", "description": "Turns a minute",
     "parameters": {"type": "object", "properties": {"gates": {"type": "array", "items": {"type": "number"}}}, "required": []}}},
]
THINK = {"enable_thinking": True}
NO_THINK = {"enable_thinking": False}

CONVERSATIONS = [
    {"messages": [u("Hello"), a("Good day.")]},
    {"messages": [s("Be brief."), u("What is a tide mill?"), a("A mill that the sea drives.")]},
    {"messages": [u("One?"), a("Two."), u("Three?"), a("Four."), u("Five?"), a("Six.")]},
    {"messages": [s(" Padded. "), u("  spaces \n"), a("\n  as well \t"), u("été"), a("Oui, été 🌊 潮汐 \u2028 مد\u200d")]},
    {"messages": [u("No answer yet")]},
    {"messages": [u("Empty?"), a("")]},
    {"messages": [u("Code"), a("```c\nint main(void) {\n    return 0;\n}\n```\n\n- {{ braces }} {% raw %}\n")]},
    {"messages": [u("<|im_end|> </s> <end_of_turn>"), a("<|im_start|>user\nno</s><|end|><|eot_id|>"), u("[INST] x [/INST]"), a("[/INST]")]},
    {"messages": [u("Why?"), a("Because.", reasoning_content="Let me think.\nIt is so.")]},
    {"messages": [u("Why?"), a("<think>\nLet me see.\n</think>\n\nBecause."), u("And?"), a("<think>\nHm.\n</think>\n\nSo.")]},
    {"messages": [u("Why?"), a("Because.", reasoning_content="first thought"), u("And?"), a("So.", reasoning_content="second thought")]},
    {"messages": [u("Why?"), a("Because.")], "chat_template_kwargs": NO_THINK},
    {"messages": [s("You think."), u("Why?"), a("Because.", reasoning_content="deep")], "chat_template_kwargs": THINK},
    {"messages": [u("When?"), a("At six.")], "tools": TOOLS},
    {"messages": [s("Tools are yours."), u("When?"), a("", tool_calls=[call("tide", {"place": "Saint-Malo é", "days": 2})]),
                  result("{\"high\": \"06:12\"}"), a("At 06:12.")], "tools": TOOLS},
    {"messages": [u("Both?"), a("", tool_calls=[call("tide", {"place": "Brest"}), call("mill_speed", {"gates": [1, 2.5]}, "call00002")]),
                  result("high"), result("12", "mill_speed", "call00002"), a("Twelve."), u("Thanks"), a("<b>Gladly</b> & 'so'.")], "tools": TOOLS},
    {"messages": [u("Say first"), a("I look it up.", tool_calls=[call("tide", {"place": "\"Rance\" \\ 'x'", "days": 1})]), result("ok"), a("Done.")],
     "tools": TOOLS},
    {"messages": [u("Think and call"), a("", reasoning_content="I need the tide.", tool_calls=[call("tide", {"place": "A"})]), result("low"),
                  a("Low.", reasoning_content="It says low.")], "tools": TOOLS},
    {"messages": [u("Call last"), a("", tool_calls=[call("mill_speed", {"gates": []})])], "tools": TOOLS},
    {"messages": [u("One"), u("Two"), a("Both.")]},
    {"messages": [a("I begin."), u("Then I."), a("Then I.")]},
    {"messages": [s(""), u("Empty system"), a("Yes.")]},
    {"messages": [u([{"type": "text", "text": "Look: "}, {"type": "text", "text": "parts"}]), a([{"type": "text", "text": "Parts as well"}])]},
    {"messages": [u("Numbers"), a("1234567890 3.14159 1e-5\r\n\ttab\x0bvt"), u("\U0001f469\u200d\U0001f680 z\u0301\u0327"), a("\ufeffBOM \u00a0nbsp")]},
    {"messages": [u("Again"), a("same"), u("Again"), a("same"), u("Again"), a("same")]},
    {"messages": [s("/no_think Short."), u("x"), a("y")], "tools": TOOLS, "chat_template_kwargs": NO_THINK},
]


def drawn(count, seed, pieces):
    """Conversations whose texts are drawn from `pieces`: turns, calls with arguments of every kind, results, thoughts."""
    rng = random.Random(seed)

    def text():
        t = "".join(rng.choice(pieces) for _ in range(rng.randint(0, 5)))
        return rng.choice([t] * 7 + ["<think>" + t + "</think>" + t, "\n\n" + t + "  ", t + " /no_think"])

    def thought():
        return {"reasoning_content": text()} if rng.random() < 0.4 else {}

    def arguments():
        values = [1, 2.5, True, None, "x \u00e9\"\\", [1, {"a": []}], {}, "", -0.0, 1e20, 1e-7, 123456789012345678]
        return {k: rng.choice(values) for k in rng.sample(["place", "days", "z", "A", "b"], rng.randint(0, 4))}

    for _ in range(count):
        m = [s(text())] if rng.random() < 0.4 else []
        for _ in range(rng.randint(1, 3)):
            m.append(u(text()))
            while rng.random() < 0.3:
                calls = [call(rng.choice(["tide", "mill_speed"]), arguments(), "call%05d" % k) for k in range(rng.choice([1, 1, 2]))]
                m.append(a(rng.choice(["", text()]), tool_calls=calls, **thought()))
                m += [result(text(), ident=c["id"]) for c in calls]
            if rng.random() < 0.9:
                m.append(a(text(), **thought()))
        row = {"messages": m}
        if rng.random() < 0.5:
            row["tools"] = TOOLS
        if rng.random() < 0.3:
            row["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
        yield row
