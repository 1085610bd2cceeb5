// The answer, token by token: shaded by probability, with a list of rivals for the token pointed at.

const MOST_SHADE = 0.38;
const rivalsOf = new WeakMap(); // token element -> {text, probability, rivals: [{text, probability}]}

const percent = (probability) => `${(100 * probability).toFixed(probability < 0.1 ? 2 : 1)} %`;
const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "·") || "(nothing)";

function addToken(token) {
  const element = document.createElement("span");
  element.className = "token";
  element.tabIndex = byId("answer").childElementCount === 0 ? 0 : -1;
  element.textContent = token.text;
  element.style.setProperty("--shade", (MOST_SHADE * token.probability).toFixed(3));
  rivalsOf.set(element, token);
  const answer = byId("answer");
  const atEnd = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 40;
  answer.append(element);
  if (atEnd) answer.scrollTop = answer.scrollHeight;
}


function clearTokens() {
  hideRivals();
  byId("answer").replaceChildren();
}

function showRivals(element) {
  const token = rivalsOf.get(element);
  if (!token) return;
  const table = document.createElement("table");
  const listed = token.rivals.some((rival) => rival.text === token.text) ? token.rivals : [token, ...token.rivals];
  for (const { text, probability } of listed) {
    const row = table.insertRow();
    row.insertCell().textContent = visible(text);
    row.insertCell().textContent = percent(probability);
    if (text === token.text) row.className = "chosen";
  }
  const box = byId("rivals");
  box.replaceChildren(table);
  box.hidden = false;
  element.setAttribute("aria-describedby", "rivals");
  place(box, element.getClientRects()[0] ?? element.getBoundingClientRect());
}

function place(box, near) {
  const left = Math.min(near.left, document.documentElement.clientWidth - box.offsetWidth - 8);
  const below = near.bottom + 6 + box.offsetHeight < window.innerHeight;
  box.style.left = `${Math.max(8, left) + window.scrollX}px`;
  box.style.top = `${(below ? near.bottom + 6 : near.top - box.offsetHeight - 6) + window.scrollY}px`;
}

function hideRivals() {
  byId("rivals").hidden = true;
}

function moveBetweenTokens(event) {
  const next = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  const from = event.target.closest(".token");
  if (event.key === "Escape") hideRivals();
  if (!next || !from || !from[next]) return;
  event.preventDefault();
  from.tabIndex = -1;
  from[next].tabIndex = 0;
  from[next].focus();
}

function listenToTokens() {
  const answer = byId("answer");
  answer.addEventListener("mouseover", (event) => showRivals(event.target));
  answer.addEventListener("focusin", (event) => showRivals(event.target));
  answer.addEventListener("mouseout", hideRivals);
  answer.addEventListener("focusout", hideRivals);
  answer.addEventListener("keydown", moveBetweenTokens);
}
