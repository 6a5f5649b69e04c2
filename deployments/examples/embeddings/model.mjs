// A sentence's vector is the weighted mean of its words' vectors, scaled to
// length 1. Frequent words say little about the subject, so a word of
// probability p weighs a/(a+p) (Arora et al., 2017); stop words weigh nothing
// unless there is nothing else. A text without any known word gets the zero
// vector, which is similar to nothing.

import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const a = 1e-3;

export async function loadModel(dir, { signal } = {}) {
  const require = createRequire(join(dir, 'package.json'));
  const nlp = require('wink-nlp')(require('wink-eng-lite-web-model'), []);
  const { dimensions, words } = JSON.parse(await readFile(join(dir, 'words.json'), { encoding: 'utf8', signal }));
  const file = await readFile(join(dir, 'vectors.f32'), { signal });
  const rows = new Float32Array(file.buffer, file.byteOffset, file.byteLength / Float32Array.BYTES_PER_ELEMENT);
  if (rows.length !== words.length * dimensions) throw new Error(`${dir} is damaged: remove it, it is made again`);
  return new Model(nlp, words, rows, dimensions);
}

class Model {
  #nlp;
  #rank;
  #rows;
  #weights;

  constructor(nlp, words, rows, dimensions) {
    this.#nlp = nlp;
    this.#rank = new Map(words.map((word, rank) => [word, rank]));
    this.#rows = rows;
    this.dimensions = dimensions;
    // Zipf's law: the word of rank r has probability 1/(r H).
    const harmonic = Math.log(words.length) + 0.5772;
    this.#weights = Float32Array.from(words, (_, rank) => a / (a + 1 / ((rank + 1) * harmonic)));
  }

  // embed returns the vector and the number of tokens in text.
  embed(text) {
    const { its } = this.#nlp;
    const words = [];
    const content = [];
    let tokens = 0;
    this.#nlp.readDoc(text).tokens().each((token) => {
      tokens++;
      const type = token.out(its.type);
      if (type !== 'word' && type !== 'number') return;
      const word = token.out(its.normal);
      words.push(word);
      if (!token.out(its.stopWordFlag)) content.push(word);
    });
    return { vector: this.#mean(content) ?? this.#mean(words) ?? new Float32Array(this.dimensions), tokens };
  }

  #mean(words) {
    const sum = new Float64Array(this.dimensions);
    let found = false;
    for (const word of words) {
      const rank = this.#rank.get(word);
      if (rank === undefined) continue;
      found = true;
      const weight = this.#weights[rank];
      const row = rank * this.dimensions;
      for (let i = 0; i < sum.length; i++) sum[i] += weight * this.#rows[row + i];
    }
    const length = Math.hypot(...sum);
    return found && length > 0 ? Float32Array.from(sum, (x) => x / length) : undefined;
  }
}
