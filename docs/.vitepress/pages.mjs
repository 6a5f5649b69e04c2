// The pages of the site, their addresses and the side bar, from the Markdown files as
// they are in the repository.

import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../..')
const source = 'https://github.com/windlass-run/windlass'

// The page that lists all others. The side bar is made from it.
const contents = 'docs/README.md'

// addresses has the output file of each page by its path in the repository.
export const addresses = { 'README.md': 'index.md', [contents]: 'docs.md', 'CHANGELOG.md': 'changelog.md' }
for (const entry of fs.readdirSync(path.join(root, 'docs'), { recursive: true })) {
  const file = 'docs/' + entry.split(path.sep).join('/')
  if (!file.endsWith('.md') || file.includes('node_modules/') || file in addresses) continue
  addresses[file] = file.slice('docs/'.length).replace(/README\.md$/, 'index.md')
}

// resolve returns where a relative link of a page leads: a page of the site, or a file
// or folder of the repository. A link that leads nowhere is an error.
export function resolve(page, href) {
  const [target, fragment] = href.split('#', 2)
  const hash = fragment === undefined ? '' : '#' + fragment
  if (target === '') return hash
  const file = path.posix.normalize(path.posix.join(path.posix.dirname(page), decodeURI(target))).replace(/\/$/, '')
  const found = file + '/README.md' in addresses ? file + '/README.md' : file
  if (found in addresses) return '/' + addresses[found].replace(/(^|\/)index\.md$/, '$1').replace(/\.md$/, '.html') + hash
  const stat = fs.statSync(path.join(root, file), { throwIfNoEntry: false })
  if (!stat) throw new Error(`${page} links to ${href}, which does not exist`)
  return `${source}/${stat.isDirectory() ? 'tree' : 'blob'}/main/${file}${hash}`
}

const read = (file) => fs.readFileSync(path.join(root, file), 'utf8')
const title = (file) => /^# (.+)$/m.exec(read(file))[1].replaceAll('`', '')

// links returns the pages that a text links to, in order and once each.
function links(page, text) {
  const items = new Map()
  for (const [, name, href] of text.matchAll(/\[([^\]]+)\]\(([^)\s#]+\.md)\)/g)) {
    const file = path.posix.normalize(path.posix.join(path.posix.dirname(page), href))
    if (file in addresses && !items.has(file)) items.set(file, { text: /\.md$/.test(name) ? title(file) : name, link: resolve(page, href) })
  }
  return items
}

// sidebar has a group for each section of the page of contents. A page of contents of a
// folder is followed by the pages of its folder.
export function sidebar() {
  const seen = new Set(['README.md', contents, 'CHANGELOG.md'])
  const groups = [{ text: 'Start', items: [{ text: 'Windlass in five minutes', link: '/' }, { text: 'All pages', link: '/docs.html' }] }]
  for (const section of read(contents).split(/^## /m).slice(1)) {
    const items = []
    for (const [file, item] of links(contents, section)) {
      if (seen.has(file)) continue
      seen.add(file)
      const folder = file.endsWith('/README.md') ? path.posix.dirname(file) + '/' : null
      items.push(folder ? { ...item, text: title(file) } : item)
      if (!folder) continue
      for (const [page, below] of links(file, read(file))) {
        if (seen.has(page) || !page.startsWith(folder)) continue
        seen.add(page)
        items.push(below)
      }
    }
    groups.push({ text: section.split('\n', 1)[0], collapsed: false, items })
  }
  const lost = Object.keys(addresses).filter((file) => !seen.has(file))
  if (lost.length) throw new Error(`${contents} leads to no page ${lost.join(', ')}: list it there, or in the README.md of its folder`)
  groups.push({ text: 'Project', items: [{ text: 'Changelog', link: '/changelog.html' }] })
  return groups
}
