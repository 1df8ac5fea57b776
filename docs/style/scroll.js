/* Marks what is wider than the screen: site.css shows a hint there until its end is in sight. */
const mark = (inner) =>
  inner.parentElement.classList.toggle("more", inner.scrollLeft + inner.clientWidth < inner.scrollWidth - 2);
const sizes = new ResizeObserver((entries) => entries.forEach((entry) => mark(entry.target)));
for (const inner of document.querySelectorAll(".wide > div")) {
  inner.addEventListener("scroll", () => mark(inner), { passive: true });
  sizes.observe(inner);
}
