// Checks the built site: each link and each anchor in its pages leads somewhere.

import fs from 'node:fs'
import path from 'node:path'

export function check(dir) {
  const pages = new Map()
  for (const entry of fs.readdirSync(dir, { recursive: true })) {
    if (!entry.endsWith('.html')) continue
    const html = fs.readFileSync(path.join(dir, entry), 'utf8')
    pages.set('/' + entry.split(path.sep).join('/'), {
      ids: new Set([...html.matchAll(/ id="([^"]+)"/g)].map((m) => m[1])),
      links: [...html.matchAll(/<a [^>]*?href="([^"]+)"/g)].map((m) => m[1].replaceAll('&amp;', '&')),
    })
  }
  const broken = []
  let count = 0
  for (const [page, { links }] of pages) {
    for (const link of new Set(links)) {
      if (/^[a-z]+:/.test(link)) continue
      count++
      const url = new URL(link, 'https://site.invalid' + page)
      const file = url.pathname.endsWith('/') ? url.pathname + 'index.html' : url.pathname
      const target = pages.get(file)
      const there = target ? !url.hash || target.ids.has(decodeURIComponent(url.hash.slice(1))) : fs.existsSync(path.join(dir, file))
      if (!there) broken.push(`${page} links to ${link}`)
    }
  }
  if (broken.length) throw new Error('links that lead nowhere:\n' + broken.join('\n'))
  console.log(`${pages.size} pages, ${count} links, none broken`)
}
