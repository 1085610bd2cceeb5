// The form: one request, streamed.

const NUM_RIVALS = 5;
let images = []; // data URLs
let running = null; // the AbortController of the request under way

const number = (id) => (byId(id).value === "" ? undefined : Number(byId(id).value));

function sampling() {
  return { temperature: number("temperature"), top_p: number("top-p"), seed: number("seed") };
}

async function* completion(prompt, signal) {
  const reply = await post("generate", {
    text: prompt,
    image_data: images.length ? images : undefined,
    sampling_params: { ...sampling(), max_new_tokens: number("max-tokens") },
    return_logprob: true,
    top_logprobs_num: NUM_RIVALS,
    return_text_in_logprobs: true,
    stream: true,
  }, signal);
  let seen = 0;
  for await (const { meta_info: meta } of events(reply)) {
    for (; seen < meta.output_token_logprobs.length; seen++) {
      const [logprob, , text] = meta.output_token_logprobs[seen];
      const rivals = meta.output_top_logprobs[seen].map(([value, , of]) => ({ text: of, probability: Math.exp(value) }));
      yield { token: { text, probability: Math.exp(logprob), rivals } };
    }
    if (meta.finish_reason) yield { finish: meta.finish_reason.type };
  }
}

async function* chat(prompt, signal) {
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  const reply = await post("v1/chat/completions", {
    messages: [{ role: "user", content: parts.length ? [...parts, { type: "text", text: prompt }] : prompt }],
    ...sampling(),
    max_tokens: number("max-tokens"),
    logprobs: true,
    top_logprobs: NUM_RIVALS,
    stream: true,
  }, signal);
  for await (const { choices: [choice] } of events(reply)) {
    for (const { token, logprob, top_logprobs: top } of choice?.logprobs?.content ?? []) {
      const rivals = top.map((rival) => ({ text: rival.token, probability: Math.exp(rival.logprob) }));
      yield { token: { text: token, probability: Math.exp(logprob), rivals } };
    }
    if (choice?.finish_reason) yield { finish: choice.finish_reason };
  }
}

async function generate(event) {
  event.preventDefault();
  if (running) return;
  running = new AbortController();
  setBusy(true);
  clearTokens();
  const mode = new FormData(byId("prompt-form")).get("mode");
  const started = performance.now();
  let first = null;
  let count = 0;
  const report = (end) => {
    const seconds = (performance.now() - started) / 1000;
    const rate = count > 1 ? `, ${((count - 1) / (seconds - first)).toFixed(1)} tokens/s` : "";
    const begin = first === null ? "" : `, first after ${first.toFixed(2)} s`;
    byId("answer-status").textContent = `${count} tokens in ${seconds.toFixed(2)} s${begin}${rate}. ${end}`;
  };
  try {
    for await (const { token, finish } of (mode === "chat" ? chat : completion)(byId("prompt").value, running.signal)) {
      if (token) {
        if (first === null) {
          first = (performance.now() - started) / 1000;
          byId("answer-status").textContent = "Generating.";
        }
        count++;
        addToken(token);
      }
      if (finish) report(`Finished: ${finish}.`);
    }
  } catch (error) {
    if (error.name === "AbortError") report("Stopped.");
    else byId("answer-status").textContent = error instanceof Refused ? error.message : `The connection failed: ${error.message}`;
  } finally {
    running = null;
    setBusy(false);
  }
}

function setBusy(busy) {
  byId("generate").disabled = busy;
  byId("stop").disabled = !busy;
  byId("legend").hidden = false;
  if (busy) byId("answer-status").textContent = "Waiting for the first token.";
}

async function addImages() {
  for (const file of byId("image").files) images.push(await asDataUrl(file));
  byId("image").value = "";
  showImages();
}

function asDataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

function showImages() {
  byId("images").replaceChildren(...images.map((url, index) => {
    const picture = Object.assign(new Image(), { src: url, alt: `Image ${index + 1}` });
    const remove = Object.assign(document.createElement("button"), { type: "button", textContent: "×" });
    remove.setAttribute("aria-label", `Remove image ${index + 1}`);
    remove.addEventListener("click", () => {
      images.splice(index, 1);
      showImages();
    });
    const item = document.createElement("li");
    item.append(picture, remove);
    return item;
  }));
}

function listenToForm() {
  byId("prompt-form").addEventListener("submit", generate);
  byId("stop").addEventListener("click", () => running?.abort());
  byId("image").addEventListener("change", addImages);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("prompt-form").requestSubmit();
  });
}
