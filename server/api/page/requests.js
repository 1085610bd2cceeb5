// Asks the server, with the key where one is wanted.

const KEY_NAME = "megaserve-key";
let asking = null; // the promise of a key that somebody is typing

const byId = (id) => document.getElementById(id);

class Refused extends Error {}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem(KEY_NAME);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const reply = await fetch(new URL(path, document.baseURI), { ...options, headers });
  if (reply.status === 401) {
    await typedKey(key ? "The server refused this key." : "");
    return ask(path, options);
  }
  return reply;
}

async function askJson(path) {
  const reply = await ask(path);
  return checked(reply).then((fine) => fine.json());
}

async function post(path, body, signal) {
  const reply = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  return checked(reply);
}

async function checked(reply) {
  if (reply.ok) return reply;
  const text = await reply.text();
  let message = text;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // whatever is between here and the server answered in its own way
  }
  throw new Refused(message || `status ${reply.status}`);
}

function typedKey(complaint) {
  asking ??= new Promise((resolve) => {
    byId("key-error").textContent = complaint;
    byId("key").value = "";
    const dialog = byId("key-dialog");
    dialog.showModal();
    const close = () => {
      if (!byId("key").value) return dialog.showModal(); // Escape: without a key there is nothing to show
      dialog.removeEventListener("close", close);
      sessionStorage.setItem(KEY_NAME, byId("key").value);
      asking = null;
      resolve();
    };
    dialog.addEventListener("close", close);
  });
  return asking;
}
