// The data embedded in the page, as compressed JSON.

/** Return the embedded data. */
async function pageData() {
  const packed = atob(document.getElementById("data").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}
