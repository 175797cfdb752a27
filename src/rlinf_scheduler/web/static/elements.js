"use strict";
// Elements of the page. Every text goes in as text: no name of a job can become markup.

const byId = (id) => document.getElementById(id);

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(byId("picture").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Only what has changed is written: the browser then lays out and paints nothing else.
function setText(element, text) {
  const node = element.firstChild;
  if (!node) { if (text) element.textContent = text; } else if (node.data !== text) node.data = text;
}
function setClass(element, name) { if (element.getAttribute("class") !== name) element.setAttribute("class", name); }
function setAttribute(element, name, value) { if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value); }

// Keeps a child for each item, in their order: made once, then only brought up to date.
function keepChildren(parent, items, keyOf, create, update) {
  const kept = (parent.kept ??= new Map()), present = new Set(items.map(keyOf));
  for (const [key, child] of kept) if (!present.has(key)) { child.remove(); kept.delete(key); }
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = kept.get(key);
    if (!child) kept.set(key, (child = create(item)));
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update?.(child, item);
  }
}

// `onSelect(kind, id)` when something is chosen that says which it is.
function onChoice(container, onSelect) {
  container.addEventListener("click", (event) => {
    const at = event.target.closest("[data-kind]");
    if (at) onSelect(at.dataset.kind, at.dataset.id);
  });
}

// Arrow keys move between elements as they stand on the screen; Tab stops at one of them only.
function roam(container, selector) {
  container.addEventListener("keydown", (event) => {
    const from = event.target.closest(selector);
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (!from || !step) return;
    event.preventDefault();
    const next = nearest(from, container.querySelectorAll(selector), step);
    if (next) focusOn(container, selector, next);
  });
  container.addEventListener("focusin", (event) => {
    const at = event.target.closest(selector);
    if (at) moveTabStop(container, selector, at);
  });
}

function nearest(from, others, [right, down]) {
  const middle = (box) => [box.x + box.width / 2, box.y + box.height / 2];
  const [x, y] = middle(from.getBoundingClientRect());
  let best = null, least = Infinity;
  for (const other of others) {
    const [ox, oy] = middle(other.getBoundingClientRect());
    const ahead = (ox - x) * right + (oy - y) * down, aside = Math.abs((ox - x) * down) + Math.abs((oy - y) * right);
    const distance = ahead + 4 * aside;
    if (other !== from && ahead > 1 && distance < least) { best = other; least = distance; }
  }
  return best;
}

function moveTabStop(container, selector, element) {
  for (const other of container.querySelectorAll(`${selector}[tabindex="0"]`)) if (other !== element) other.setAttribute("tabindex", -1);
  element.setAttribute("tabindex", 0);
}

function focusOn(container, selector, element) {
  moveTabStop(container, selector, element);
  element.focus();
  element.scrollIntoView({ block: "nearest", inline: "nearest" });
}
