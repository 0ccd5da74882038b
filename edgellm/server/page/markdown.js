"use strict";
// Markdown as DOM nodes. Text only ever becomes text: nothing a model writes is parsed as HTML, nothing is fetched.

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^*\s](?:[\s\S]*?[^*\s])?)\*\*|\*([^*\s](?:[^*\n]*?[^*\s])?)\*|~~([^~]+)~~|!?\[([^\]\n]*)\]\(([^()\s]+(?:\([^()\s]*\))?)\)|(https?:\/\/[^\s<>()\[\]]+[^\s<>()\[\].,;:!?'"])/;

function node(tag, children = [], attributes = {}) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function link(url, children) {
  if (!/^(https?:|mailto:)/i.test(url)) return children;
  return [node("a", children, { href: url, target: "_blank", rel: "noopener noreferrer nofollow" })];
}

function inline(text) {
  const nodes = [];
  while (text) {
    const found = INLINE.exec(text);
    if (!found) break;
    if (found.index) nodes.push(text.slice(0, found.index));
    const [all, , code, strong, em, struck, label, target, bare] = found;
    if (code !== undefined) nodes.push(node("code", [code.trim() || code]));
    else if (strong !== undefined) nodes.push(node("strong", inline(strong)));
    else if (em !== undefined) nodes.push(node("em", inline(em)));
    else if (struck !== undefined) nodes.push(node("del", inline(struck)));
    else if (target !== undefined) nodes.push(...link(target, inline(label || target)));
    else nodes.push(...link(bare, [bare]));
    text = text.slice(found.index + all.length);
  }
  if (text) nodes.push(text);
  return nodes;
}

function codeBlock(lines, language) {
  const copy = node("button", ["Copy"], { type: "button" });
  const source = lines.join("\n");
  copy.addEventListener("click", () => copyText(source, copy));
  const head = node("div", [node("span", [language]), copy], { class: "label" });
  return node("div", [head, node("pre", [node("code", [source])], { tabindex: "0" })], { class: "block" });
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1200);
}

const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const cells = (row) => row.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function list(lines, at, indent) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const items = [];
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item) {
      if (lines[at].trim() && /^\s+/.test(lines[at]) && items.length) {
        items[items.length - 1].append(node("br"), ...inline(lines[at].trim()));
        at += 1;
        continue;
      }
      if (!lines[at].trim() && at + 1 < lines.length && ITEM.test(lines[at + 1])) { at += 1; continue; }
      break;
    }
    if (item[1].length < indent) break;
    if (item[1].length > indent + 1 && items.length) {
      const [inner, next] = list(lines, at, item[1].length);
      items[items.length - 1].append(inner);
      at = next;
      continue;
    }
    if (/\d/.test(item[2]) !== ordered) break;
    items.push(node("li", inline(item[3])));
    at += 1;
  }
  const start = parseInt(first[2], 10);
  return [node(ordered ? "ol" : "ul", items, ordered && start !== 1 ? { start: String(start) } : {}), at];
}

function markdown(text) {
  const lines = text.split("\n");
  const out = document.createDocumentFragment();
  let at = 0;
  let paragraph = [];
  const flush = () => {
    if (!paragraph.length) return;
    const children = [];
    paragraph.forEach((line, i) => { if (i) children.push(node("br")); children.push(...inline(line)); });
    out.append(node("p", children));
    paragraph = [];
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)/.exec(line);
    const heading = /^(#{1,6})\s+(.*)$/.exec(line);
    if (fence) {
      flush();
      const body = [];
      at += 1;
      while (at < lines.length && !lines[at].trim().startsWith(fence[1])) body.push(lines[at++]);
      at += 1;
      out.append(codeBlock(body, fence[2]));
    } else if (heading) {
      flush();
      out.append(node(`h${Math.min(4, heading[1].length)}`, inline(heading[2])));
      at += 1;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      out.append(node("hr"));
      at += 1;
    } else if (/^>\s?/.test(line)) {
      flush();
      const quoted = [];
      while (at < lines.length && /^>\s?/.test(lines[at])) quoted.push(lines[at++].replace(/^>\s?/, ""));
      out.append(node("blockquote", [markdown(quoted.join("\n"))]));
    } else if (ITEM.test(line)) {
      flush();
      const [made, next] = list(lines, at, ITEM.exec(line)[1].length);
      out.append(made);
      at = next;
    } else if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[at + 1] || "") && (lines[at + 1] || "").includes("|")) {
      flush();
      const sides = cells(lines[at + 1]).map((rule) => (rule.endsWith(":") ? (rule.startsWith(":") ? "center" : "right") : "left"));
      const row = (tag, text) => node("tr", cells(text).map((cell, i) => node(tag, inline(cell), { class: sides[i] ?? "left" })));
      const head = row("th", line);
      const rows = [];
      at += 2;
      while (at < lines.length && lines[at].includes("|")) rows.push(row("td", lines[at++]));
      out.append(node("table", [node("thead", [head]), node("tbody", rows)]));
    } else if (!line.trim()) {
      flush();
      at += 1;
    } else {
      paragraph.push(line);
      at += 1;
    }
  }
  flush();
  return out;
}
