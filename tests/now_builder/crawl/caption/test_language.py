"""Language of short texts."""

import pytest

from now_builder.crawl.caption.language import detect_language, primary_tag


@pytest.mark.parametrize(
    ("text", "declared", "language"),
    [
        ("北京最好吃的餐厅", None, "zh"),
        ("東京で一番おいしい店", "zh", "ja"),
        ("서울 맛집", None, "ko"),
        ("東京大学", "ja", "ja"),
        ("Лучшие рестораны Москвы и Санкт-Петербурга, отзывы и цены", None, "ru"),
        ("The best restaurants in town, chosen by people who live here", None, "en"),
        ("Les meilleurs restaurants de la ville, choisis par ceux qui y vivent", "en", "fr"),
        ("Home", "de-AT", "de"),
        ("Documentation of the connectors that come with this release", "zh", "en"),
        ("Flink CDC documentation", "zh", "und"),
        ("Flink CDC documentation", "en", "en"),
        ("Azul Zulu", None, "und"),
        ("Login", None, "und"),
        ("Ok", None, "und"),
        ("mkdocs-material", "english", "und"),
        ("Über uns", None, "de"),
        ("Главная страница", None, "ru"),
        ("Kontaktieren Sie uns", None, "de"),
        ("鐵路", None, "zh"),
        ("", "pt_BR", "pt"),
        ("123 !!", None, None),
        ("iPhone 15 评测", "en", "zh"),
        ("Kotlinのenum, data class, sealed class", "en", "en"),
        ("Naša pekara svako jutro", "sr", "sr"),
        ("Наша пекара свако јутро", "sr-RS", "sr"),
        ("Свежий хлеб", "os", "os"),
        ("خبز طازج", "en-US", "und"),
        ("خبز طازج كل صباح", "en-US", "ar"),
        ("خبز طازج", "fa", "fa"),
        ("לחם טרי", "yi", "yi"),
        ("לחם טרי", "iw", "he"),
        ("ትኩስ ዳቦ", "ti", "ti"),
        ("Fresh bread", "ar", "und"),
        ("Fresh bread", "zgh", "und"),
    ],
)
def test_the_language_of_a_short_text(text: str, declared: str | None, language: str) -> None:
    assert detect_language(text, declared) == language


WRITTEN = {
    "ar": "خبز طازج وكعك كل صباح في مخبزنا في وسط المدينة",
    "fa": "نان تازه و شیرینی هر روز صبح در نانوایی ما در مرکز شهر",
    "ur": "ہماری بیکری میں ہر صبح تازہ روٹی اور کیک دستیاب ہیں",
    "ug": "ناۋايخانىمىزدا ھەر كۈنى ئەتىگەندە يېڭى نان ۋە تورت بار",
    "ckb": "نانی تازە و کێک هەموو بەیانییەک لە نانەواخانەکەمان",
    "hi": "हमारी बेकरी में हर सुबह ताज़ी रोटी और केक मिलते हैं",
    "mr": "आमच्या बेकरीमध्ये दररोज सकाळी ताजी भाकरी आणि केक मिळतात",
    "ne": "हाम्रो बेकरीमा हरेक बिहान ताजा रोटी र केक पाइन्छ",
    "bn": "আমাদের বেকারিতে প্রতিদিন সকালে তাজা রুটি ও কেক",
    "pa": "ਸਾਡੀ ਬੇਕਰੀ ਵਿੱਚ ਹਰ ਸਵੇਰ ਤਾਜ਼ੀ ਰੋਟੀ", "gu": "અમારી બેકરીમાં દરરોજ સવારે તાજી રોટલી",
    "or": "ଆମ ବେକେରୀରେ ପ୍ରତିଦିନ ସକାଳେ ତାଜା ରୁଟି", "ta": "எங்கள் பேக்கரியில் தினமும் காலை புதிய ரொட்டி",
    "te": "మా బేకరీలో ప్రతి ఉదయం తాజా రొట్టె", "kn": "ನಮ್ಮ ಬೇಕರಿಯಲ್ಲಿ ಪ್ರತಿದಿನ ಬೆಳಿಗ್ಗೆ ತಾಜಾ ಬ್ರೆಡ್",
    "ml": "ഞങ്ങളുടെ ബേക്കറിയിൽ എല്ലാ ദിവസവും പുതിയ അപ്പം", "si": "අපේ බේකරියේ සෑම උදෑසනකම නැවුම් පාන්",
    "th": "ขนมปังสดและเค้กทุกเช้าที่ร้านของเรา", "lo": "ເຂົ້າຈີ່ສົດທຸກໆເຊົ້າ", "km": "នំប៉័ងស្រស់រៀងរាល់ព្រឹក",
    "my": "ကျွန်ုပ်တို့ မုန့်ဆိုင်မှာ နေ့တိုင်း ပေါင်မုန့်", "bo": "ང་ཚོའི་བག་ལེབ་ཁང་", "am": "በየቀኑ ጠዋት ትኩስ ዳቦ እና ኬክ",
    "ka": "ახალი პური ყოველ დილით", "hy": "Թարմ հաց ամեն առավոտ", "el": "Φρέσκο ψωμί κάθε πρωί",
    "he": "לחם טרי ועוגות בכל בוקר", "dv": "ކޮންމެ ހެނދުނަކު ތާޒާ ޕާން", "chr": "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ",
    "ru": "Свежий хлеб и пирожные каждое утро в нашей пекарне в центре города",
    "uk": "Свіжий хліб і тістечка щоранку в нашій пекарні у центрі міста",
    "bg": "Пресен хляб и сладкиши всяка сутрин в нашата пекарна в центъра на града",
    "kk": "Біздің наубайханада күн сайын таңертең жаңа нан мен торт бар",
    "mn": "Манай талх нарийн боовны газарт өглөө бүр шинэхэн талх, бялуу",
    "ja": "毎朝焼きたてのパンとケーキ", "ko": "매일 아침 갓 구운 빵",
    "zh": "每天早上新鲜出炉的面包",
}  # fmt: skip


@pytest.mark.parametrize("declared", ["en-US", "fr", "zh-CN", "sw"])
@pytest.mark.parametrize("language", WRITTEN)
def test_a_declaration_in_another_script_is_ignored(language: str, declared: str) -> None:
    assert detect_language(WRITTEN[language], declared) == language
    first = " ".join(WRITTEN[language].split()[:2])
    assert detect_language(first, declared) != primary_tag(declared) or language == "zh"


@pytest.mark.parametrize("language", WRITTEN)
def test_one_in_the_texts_script_is_taken(language: str) -> None:
    assert detect_language(WRITTEN[language].split()[0], language) == language


def test_what_is_no_language_tag_is_none() -> None:
    assert [primary_tag(tag) for tag in ("zh-Hant-TW", "EN", "cn", "english", "", None)] == [
        "zh", "en", "zh", None, None, None,
    ]  # fmt: skip
