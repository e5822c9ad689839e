"use strict";
// What the page does beside its curves: light and dark, copying, the heat map's values, printing.
(() => {
  const byId = (id) => document.getElementById(id);

  byId("theme").addEventListener("change", (event) => {
    const root = document.documentElement;
    if (event.target.value === "auto") delete root.dataset.theme;
    else root.dataset.theme = event.target.value;
  });

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Pages from a file may be refused the clipboard; a selection can still be copied.
      const field = document.createElement("textarea");
      field.value = text;
      document.body.append(field);
      field.select();
      const done = document.execCommand("copy");
      field.remove();
      return done;
    }
  };
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", async () => {
      const done = await copy(byId(button.dataset.copy).textContent);
      byId("copied").textContent = done ? "Copied." : "Select the command and copy it by hand.";
      button.focus();
    });
  }

  const heat = byId("heat");
  if (heat) {
    const { clients, labels, counts } = JSON.parse(byId("heat-data").textContent);
    const said = byId("heat-value");
    const usual = said.textContent;
    heat.addEventListener("pointermove", (event) => {
      const box = heat.getBoundingClientRect();
      const place = (share, size) => Math.min(Math.max(Math.floor(share * size), 0), size - 1);
      const column = place((event.clientX - box.left) / box.width, clients.length);
      const row = place((event.clientY - box.top) / box.height, labels.length);
      const count = counts[row][column];
      said.textContent = `Client ${clients[column]}, label ${labels[row]}: ${count} samples.`;
    });
    heat.addEventListener("pointerleave", () => { said.textContent = usual; });
  }

  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.print:not([open])")];
    for (const each of opened) each.open = true;
  });
  addEventListener("afterprint", () => {
    for (const each of opened) each.open = false;
  });
})();
