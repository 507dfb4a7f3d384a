"""Random conversations for the tests of chat templates: turns, thinking, tools, and texts that templates may trip over."""
import json

WORDS = ["Hello", "\n", "  ", "é", "中文", "𝄞", "<think>", "</think>", "x", "{{ 1 }}", "{% if %}", "<|im_end|>", "\t", "'", '"', "\\", "3.5", "A b", "\u00a0", "[INST]", "&lt;"]


def words(draw):
    return "".join(draw.choice(WORDS) + draw.choice(["", " ", "\n"]) for _ in range(draw.randrange(0, 9)))


def conversation(draw):
    messages = []
    if draw.random() < 0.5:
        messages.append({"role": "system", "content": words(draw)})
    for turn in range(draw.randrange(1, 5)):
        messages.append({"role": "user", "content": words(draw)})
        answer = {"role": "assistant", "content": words(draw)}
        kind = draw.random()
        if kind < 0.2:
            answer["reasoning_content"] = words(draw)
        elif kind < 0.4:
            answer["content"] = "<think>\n" + words(draw) + "\n</think>\n\n" + words(draw)
        elif kind < 0.55:
            calls = [{"type": "function", "id": f"call{i:05}", "function": {"name": "f", "arguments": {"a": words(draw), "n": [1, 2.5, None]}}}
                     for i in range(draw.randrange(1, 3))]
            messages.append({"role": "assistant", "content": draw.choice(["", None, words(draw)]), "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": call["id"], "name": "f", "content": words(draw)} for call in calls]
        messages.append(answer)
    if draw.random() < 0.3:
        messages.pop()
    if draw.random() < 0.1:
        messages.append({"role": draw.choice(["tool", "user", "system", "other"]), "content": words(draw)})
    if draw.random() < 0.1:
        draw.choice(messages)["content"] = [{"type": "text", "text": words(draw)}]
    line = {"messages": messages}
    if draw.random() < 0.15:
        line["tools"] = [{"type": "function", "function": {"name": "f", "description": words(draw), "parameters":
                          {"type": "object", "properties": {"a": {"type": "string", "description": words(draw)}}, "required": ["a"]}}}]
    return json.dumps(line, ensure_ascii=draw.random() < 0.5)
