// Arrays from the page's data blocks: the inverse of markup.pack.

const KINDS = {
  u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i2: Int16Array, i4: Int32Array, f4: Float32Array,
};

/** Deflated bytes in base64 -> a response with the bytes. */
function inflated(data) {
  const text = atob(data);
  const deflated = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) deflated[i] = text.charCodeAt(i);
  return new Response(new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate")));
}

/** {layout, data} -> {name: typed array}. */
async function unpackColumns(packed) {
  const bytes = new Uint8Array(await inflated(packed.data).arrayBuffer());
  const columns = {};
  let from = 0;
  for (const [name, kind, length] of packed.layout) {
    const column = new KINDS[kind](length);
    const own = new Uint8Array(column.buffer);
    const width = column.BYTES_PER_ELEMENT;
    for (let plane = 0; plane < width; plane++) {
      for (let i = 0, to = plane; i < length; i++, to += width) own[to] = bytes[from + i];
      from += length;
    }
    columns[name] = column;
  }
  return columns;
}

/** The value of a data block. */
function readBlock(name) {
  return JSON.parse(document.getElementById(name).textContent);
}
