// The engine, looked at once a second.

const PERIOD = 1000; // milliseconds
const KEPT = 120;
const history = []; // generated tokens per second
let before = null; // {time, stats} of the last look

const grouped = new Intl.NumberFormat("en");

async function look() {
  try {
    const [load, ready] = [await askJson("load"), await ask("health/ready").then((reply) => reply.json())];
    showStatus(ready.status, ready.reason);
    showLoad(load);
    byId("restarts").textContent = ready.num_restarts;
  } catch (error) {
    showStatus("unreachable", error.message);
  }
  setTimeout(look, PERIOD);
}

function showStatus(status, reason) {
  byId("status").textContent = reason ? `${status}: ${reason}` : status;
  byId("status").dataset.state = status === "ready" ? "ready" : "failed";
}

function showLoad({ stats }) {
  const now = { time: performance.now(), stats };
  const used = stats.num_blocks - stats.num_free_blocks;
  byId("running").textContent = stats.num_running;
  byId("waiting").textContent = stats.num_waiting;
  showGauge("kv", used, stats.num_blocks, `${grouped.format(used)} of ${grouped.format(stats.num_blocks)} in use`);
  showShare("prefix", stats.total_cached_tokens, stats.total_prompt_tokens);
  const hits = stats.total_image_cache_hits;
  showShare("image-hits", hits, hits + stats.total_images_encoded);
  byId("total-generated").textContent = `${grouped.format(stats.total_generated_tokens)} tokens`;
  byId("last-step").textContent = `${(1000 * stats.last_step_seconds).toFixed(1)} ms`;
  byId("preemptions").textContent = grouped.format(stats.total_preemptions);
  if (before) showRates(before, now);
  before = now;
}

function showRates(from, to) {
  const seconds = (to.time - from.time) / 1000;
  // After a restart of the ranks the counters begin again.
  const rate = (name) => Math.max(0, to.stats[name] - from.stats[name]) / seconds;
  const generated = rate("total_generated_tokens");
  byId("tokens-per-second").textContent = generated.toFixed(generated < 100 ? 1 : 0);
  byId("prompt-tokens-per-second").textContent = rate("total_prompt_tokens").toFixed(0);
  history.push(generated);
  if (history.length > KEPT) history.shift();
  drawHistory();
}

function drawHistory() {
  const most = Math.max(...history, 1);
  const at = (value, index) => `${KEPT - history.length + index + 1},${(35 - (33 * value) / most).toFixed(2)}`;
  const line = history.map(at).join(" L");
  const [area, stroke] = byId("history").children;
  stroke.setAttribute("d", `M${line}`);
  area.setAttribute("d", `M${KEPT - history.length + 1},36 L${line} L${KEPT},36 Z`);
  byId("peak").textContent = `peak ${most.toFixed(0)}`;
}

function showShare(id, part, whole) {
  const text = whole ? `${((100 * part) / whole).toFixed(1)} % of ${grouped.format(whole)}` : "none asked for yet";
  showGauge(id, part, whole, text);
}

function showGauge(id, part, whole, text) {
  byId(id).value = whole ? part / whole : 0;
  byId(`${id}-text`).textContent = text;
}
