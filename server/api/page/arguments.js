// The resolved arguments, and where each of them came from.

let argumentRows = [];

const shown = (value) => (value === null ? "" : typeof value === "string" ? value : JSON.stringify(value));

async function showServer() {
  const info = await askJson("server_info");
  document.title = `${info.model} · megaserve`;
  byId("model").textContent = info.model;
  byId("summary").textContent = `megaserve ${info.versions.megaserve} · torch ${info.versions.torch} · ` +
    (info.model_kind === "vlm" ? "takes text and images" : "takes text");
  byId("image-row").hidden = byId("image-gauge").hidden = info.model_kind !== "vlm";
  showCheckpoint(info.checkpoint);
  argumentRows = info.document.arguments;
  showArguments();
}

async function showCheckpoint(checkpoint) {
  const digest = checkpoint.digest ? `SHA-256 ${checkpoint.digest}` : "digest is being computed";
  byId("checkpoint").textContent = `${checkpoint.path} · ${checkpoint.format} · iteration ${checkpoint.iteration} · ${digest}`;
  if (!checkpoint.digest) setTimeout(async () => showCheckpoint((await askJson("server_info")).checkpoint), 5000);
}

function showArguments() {
  const wanted = byId("argument-filter").value.trim().toLowerCase();
  const all = byId("argument-all").checked || wanted !== "";
  const rows = argumentRows.filter((row) =>
    (all || row.source !== "default") &&
    (`${row.arg} ${shown(row.value)}`.toLowerCase().includes(wanted)));
  byId("argument-count").textContent = `${rows.length} of ${argumentRows.length}`;
  byId("arguments").replaceChildren(...rows.map(argumentRow));
}

function argumentRow(argument) {
  const row = document.createElement("tr");
  const name = document.createElement("th");
  name.scope = "row";
  name.textContent = argument.arg;
  row.append(name);
  const value = row.insertCell();
  value.className = "value";
  value.textContent = shown(argument.value) || "None";
  const source = document.createElement("span");
  source.className = "source";
  source.dataset.source = argument.source;
  source.textContent = argument.source.replace("_", " ") + (argument.overridden ? ", overrides" : "");
  row.insertCell().append(source);
  for (const place of ["command_line", "config_file", "checkpoint", "default", "note"]) {
    row.insertCell().textContent = shown(argument[place]);
  }
  return row;
}

function listenToFilters() {
  byId("argument-filter").addEventListener("input", showArguments);
  byId("argument-all").addEventListener("change", showArguments);
}
